"""Secure sums: the server learns the sum of the sites' vectors, not the vectors.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for
Privacy-Preserving Machine Learning" (CCS 2017), with signatures. A `site.SecureSite`
and a `server.SecureServer` exchange bytes over any transport, in five requests:
`advertise`, `share`, `mask`, `confirm`, `unmask`. With n sites in the roster, the
threshold is t = max(⌈2n/3⌉, ⌊n/2⌋ + 1). If fewer than t sites remain, there is no sum.

Trusted: the root authority, which certifies each site name once; the roster and the
root certificate, which each site has from its own operator; the site's own machine. The
server and administrators can have certificates of the same root: a roster must not name
them.

**A server that follows the protocol and stores everything** learns the sum over the
survivors, even together with t - 1 sites, whose own vectors it then subtracts. The
vector of an honest site stays hidden among those of the other honest survivors.

**A server that deviates from the protocol** can send different bytes to each site.
Sites refuse a replaced key, a missing or foreign signature, a message of another
exchange, too few sites, and a second, different request. Sites that were shown
different keys cannot read each other's shares, and sites that were shown different
survivors do not sign the same list. To remove all masks of one site, the server needs
two lists with t signatures each, for which at least 2t - n sites must be dishonest (1
for n = 3, 2 for n = 4, 12 for n = 32). The server can always end an exchange, leave out
up to n - t sites, and report a wrong sum: sites do not verify the sum.

**A dishonest site** can make an exchange fail, since sites refuse shares that they
cannot decrypt, and can upload any vector. The server cannot look at single vectors, so
limits are enforced at the sites and checked on the sum. Wrong shares are detected.

**Not hidden**: the names of the sites, the time of their replies, the survivors, the
length of the vectors, and the sum. A sum over few sites, or two sums whose survivors
differ by one site, say much about one vector: differential privacy limits this. With
two sites, each site learns the other's vector from the sum.

Keys, seeds and shares come from the operating system, are new in each exchange, and are
dropped after the last request. Python cannot erase them from memory.
"""
