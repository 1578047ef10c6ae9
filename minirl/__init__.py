"""minirl: reinforcement learning of language models on verifiable rewards, small enough to read in one sitting."""
