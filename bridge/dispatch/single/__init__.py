"""Out, where one consumer gets everything: Exclusive and Failover subscriptions."""
