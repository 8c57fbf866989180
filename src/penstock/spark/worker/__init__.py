"""The Python processes that Spark forks for tasks: fast start, no idle work, and an end with their driver.

``daemon`` forks them, ``collector`` and ``lifetime`` run inside, ``plan_access`` lets them into the store, and
``archive`` packs what they need where it is not installed. ``archives`` keeps them from compiling PySpark at each start.
Start reading at ``daemon``.
"""
