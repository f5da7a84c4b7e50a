"""Why a training or its evaluation went wrong: typed findings with evidence and the next action."""
