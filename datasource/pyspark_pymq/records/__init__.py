"""Record bytes to Arrow and Arrow to message bodies. Knows no cluster and no Spark session."""
