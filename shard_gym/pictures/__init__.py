"""Pictures: plans as text, SVG and PNG; what a device's cost is drawn of; a canvas for pictures of episodes."""
