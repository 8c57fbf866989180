"""The data plane: the interface of a segment store, one small Protocol per subject.

``SegmentService`` (``service``) combines them; stores implement it. A caller declares only the subject that it needs.
``imports`` and ``direct_appends`` are offered by some stores only.
"""
