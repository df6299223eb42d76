"""Long-sequence architectures compared fairly: Long Range Arena from scratch and after self-pretraining."""

__version__ = '0.1.0'
