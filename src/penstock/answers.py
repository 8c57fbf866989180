"""The types of what calls return: descriptions, plans, reports. Each has the fields that its docstring names.

A module below that gets a type lists it in its ``__all__``; nothing is repeated here.
"""

from __future__ import annotations

from penstock.core.cases.ledger import *
from penstock.model.answers.approvals import *
from penstock.model.answers.erasure import *
from penstock.model.answers.evidence import *
from penstock.model.answers.explanation import *
from penstock.model.answers.facts import *
from penstock.model.answers.forecast import *
from penstock.model.answers.groups import *
from penstock.model.answers.plan import *
from penstock.model.answers.reclaim import *
from penstock.model.answers.scaling import *
from penstock.model.answers.subscribers import *
from penstock.model.answers.transactions import *
from penstock.model.answers.undo import *
from penstock.model.scaling import *
from penstock.ports.control.layout import *
from penstock.ports.control.scopes import *
from penstock.ports.control.streams import *
from penstock.ports.control.subscribers import *
from penstock.ports.control.tables import *
from penstock.ports.control.transactions import *
