"""Files that appear whole or not at all, on disks and in buckets (gs://); no jax."""

from lra_spt.files.atomic import *  # noqa: F403
