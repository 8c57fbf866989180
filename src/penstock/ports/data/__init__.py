"""The data plane: what a segment store offers, one small Protocol for each subject.

``SegmentService`` (``service``) is all of them together, and what stores implement. A caller declares the subject that it
needs. ``imports`` and ``direct_appends`` are offered by some stores only.
"""
