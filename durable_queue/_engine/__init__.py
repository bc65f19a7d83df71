"""The shell around the decisions: event loop, clock, storage calls, handlers, subscriptions."""
