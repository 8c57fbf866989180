"""What several machines share: replicated ledgers. Each port names its laws; ``testing.conformance`` checks them."""
