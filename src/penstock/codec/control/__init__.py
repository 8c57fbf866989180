"""What the controller stores in its table: one small JSON object per key, each with a version.

Each record is one JSON object with a version (``record``). ``streams``, ``readers``, ``policies``, ``truncations``
and ``erasures`` have the records by subject; ``policy_document`` has the policy as users write it. Imports ``model``
and other packages of ``codec``. Start reading at ``record`` and docs/formats/metadata.md.
"""
