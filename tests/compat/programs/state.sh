#!/bin/sh
grep -E '^Sig(Blk|Ign)' /proc/self/status | sed 's/^/@W /'
