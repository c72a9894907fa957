"""A face: names that programs import. The code is in ``engine``, ``core``, ``transport`` and ``observe``."""
