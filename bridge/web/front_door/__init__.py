"""The cluster's HTTP interface as clients and admins know it: the broker answers, by the caller's rights."""
