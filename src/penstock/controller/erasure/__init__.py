"""Erasures: requested, decided, performed despite crashes, and proved by a receipt.

The controller decides an erasure and keeps its positions and receipts; ``segmentstore.erasure`` blanks the bytes.
Each step is durable and repeated after a crash. Start reading at ``erasures``. Source: docs/design/0018-erasure.md.
"""
