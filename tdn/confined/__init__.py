"""Work that comes from strangers, done in processes that can be killed: `Lanes.run(job)` ends in a result, an error or a refusal, within bounds of time and memory.

It is fair between askers and leaves no process behind. What a job means, and who may send one, is left to others.
"""
