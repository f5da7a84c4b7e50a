"""Plan before you burn: memory, recomputation, strategies and their time, on paper; nothing here needs MindSpore."""
