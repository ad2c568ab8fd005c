"""Subscriptions over one index: what each has acked, what it holds, what is due for it next."""
