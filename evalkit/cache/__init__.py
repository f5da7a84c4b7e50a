"""The result cache: what a model answered to exactly these inputs needn't be asked again."""
