"""Rules about streams: epochs, scaling, routing, transactions, and who may use a writer's or a subscriber's name. Pure."""
