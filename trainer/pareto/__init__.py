"""Speed against score: trials of a training's settings, and the settings that nothing beats on both."""
