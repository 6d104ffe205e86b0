"""`python -m spark.package FILE.zip`: our code for `spark-submit --py-files`."""

from __future__ import annotations

import shutil
import sys

from spark.session import code

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m spark.package FILE.zip")
    with code() as path:
        shutil.copyfile(path, sys.argv[1])
