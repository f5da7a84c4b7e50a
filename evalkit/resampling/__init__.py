"""Making a validation set look like other traffic: features, weights, and what the weights can't do."""
