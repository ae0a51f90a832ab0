"""Parts of `conformance.py`: tools of other people's benchmarks, outside of any session."""
