"""Evaluations draw figures."""

from coarse_pictures import coarse_pictures

__all__ = ["coarse_pictures"]
