"""Runs a policy of libCacheSim: cache_simulator.py POLICY TRACE CAPACITY prints the ratios of misses by requests and by bytes."""

import sys

import libcachesim

policy, path, capacity = sys.argv[1:]
reader = libcachesim.TraceReader(path, trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE)
misses, miss_bytes = getattr(libcachesim, policy)(cache_size=int(capacity)).process_trace(reader)
print(misses, miss_bytes)
