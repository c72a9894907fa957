"""Public names for programs. The code is in ``engine``, ``core``, ``transport`` and ``observe``."""
