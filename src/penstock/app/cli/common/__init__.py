"""What all commands share: targets, options of policies, output and words.

Modules of commands import this package; it imports no command. It reaches stores through ``client``, ``app.embedded``
or ``app.remote`` (``target``). Start reading at ``target`` for connections and ``output`` for what commands print.
"""
