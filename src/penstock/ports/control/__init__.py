"""The control plane, one module and one small Protocol per subject.

Each module has the Protocol and the types that its calls take and return. ``plane.ControlPlane`` combines the subjects:
``control.streams.create(...)``, ``control.retention.plan(...)``. The controller implements them in process;
``net.dial`` derives a remote one from them. A call that is added here needs its implementation in ``penstock.controller``
and, if it is offered over HTTP, one declaration in ``penstock.net.http.own_calls``.
Start reading at ``plane.py``.
"""
