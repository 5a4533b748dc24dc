"""Print what to type next. Nothing here may fail: cookiecutter would delete the new project."""

import sys

SLUG = {{cookiecutter.project_slug | tojson}}

try:
    print(f"\nNext:\n  cd {SLUG}\n  make install\n  make benchmark", flush=True)
except (OSError, ValueError):
    # Closed output, or one that cannot be written to: the project is there all the same.
    sys.stdout = None
