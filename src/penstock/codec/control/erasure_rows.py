"""The rows of erasures and of cases in the controller's table, for the data dictionary."""

from __future__ import annotations

from penstock.codec.control.cases import CaseRecord, CaseStreamRecord, LeftTablesRecord
from penstock.codec.control.erasures import (
    ErasureChainRecord,
    ErasureChunksRecord,
    ErasureMarkRecord,
    ErasurePartRecord,
    ErasureRecord,
)
from penstock.codec.control.streams import CounterRecord, MarkerRecord
from penstock.codec.dictionary import Entry

_ERASURES = "controller.erasure.erasures"
_CASES = "controller.erasure.cases"

ERASURE_ROWS = (
    Entry(
        key="erasure/{erasure}",
        value=ErasureRecord,
        one_for="each erasure; it outlives its stream",
        writers=(_ERASURES, "controller.erasure.deferral"),
        ends="it is given up before the request is complete; else nothing",
    ),
    Entry(
        key="erasure-part/{erasure}/{run}{page}/{segment}",
        value=ErasurePartRecord,
        one_for="each segment in a page of positions of a run",
        writers=(_ERASURES,),
        ends="another run of the erasure is decided, or it is withdrawn",
    ),
    Entry(
        key="erasure-chunks/{erasure}/{page}",
        value=ErasureChunksRecord,
        one_for="each thousand chunks that an erasure rewrote",
        writers=("controller.erasure.parts",),
        ends="nothing",
    ),
    Entry(
        key="erasure-work/{erasure}",
        value=ErasureMarkRecord,
        one_for="each erasure that is neither done nor withdrawn",
        writers=(_ERASURES, "controller.erasure.deferral"),
        ends="its receipt or its withdrawal",
    ),
    Entry(
        key="erasure-chain",
        value=ErasureChainRecord,
        one_for="the store: the last receipt",
        writers=(_ERASURES,),
        ends="nothing",
    ),
    Entry(
        key="erasure-feed",
        value=CounterRecord,
        one_for="the store, once it has a receipt: the number of the last one that is in the erasure feed",
        writers=("controller.erasure.feed",),
        ends="nothing",
    ),
    Entry(
        key="erasures-policy",
        value=MarkerRecord,
        one_for="the store, if the operator has set the policy of the erasure feed",
        writers=("controller.retention.policies",),
        ends="the operator clears the policy",
    ),
    Entry(
        key="case/{case}",
        value=CaseRecord,
        one_for="each case of erasure",
        writers=(_CASES,),
        ends="nothing",
    ),
    Entry(
        key="case-stream/{case}/{scope}/{stream}",
        value=CaseStreamRecord,
        one_for="each stream that a case has searched",
        writers=("controller.erasure.case_search",),
        ends="nothing",
    ),
    Entry(
        key="left-tables/{scope}/{stream}/{incarnation}",
        value=LeftTablesRecord,
        one_for="each deleted stream that had tables as subscribers; it outlives the stream",
        writers=("controller.grace.left_tables",),
        ends="the stream is restored; else nothing",
    ),
)
