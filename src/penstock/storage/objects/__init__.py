"""Object stores: named objects in a directory, in a cloud or in HDFS.

Start with ``cloud_objects``, which has the whole port; ``hdfs_objects`` does the same with files and renames, and
``hdfs_errors`` has its failures. ``locations`` reads an object by its URL, without a store.
"""
