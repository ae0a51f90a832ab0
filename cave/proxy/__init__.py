"""The way of confined cells to the hosts that a policy names: a small forward proxy.

It runs on the trusted side, as a child of the kernel's keeper (`python -I -S -c ...`, standard
library only), and serves the one kernel whose listening socket it was given. It speaks HTTP/1.1:
`CONNECT host:port`, and requests with an absolute `http://` target. It resolves names itself,
and connects to the very addresses that it has looked at.
"""
