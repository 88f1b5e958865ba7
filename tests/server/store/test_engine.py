"""Database addresses: several hosts, and invalid addresses."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url, text

from memagent.errors import SettingError
from memagent_server.settings import Settings
from memagent_server.store.engine import Database


def arguments_of(address):
    """Return the driver's arguments for MEMAGENT_DATABASE_URL."""
    settings = Settings.from_environ({"MEMAGENT_DATABASE_URL": address, "MEMAGENT_SECRET_KEY": "k"})
    database = Database(settings.database_url)
    _, result = database.engine.dialect.create_connect_args(database.engine.url)
    database.close()
    return result


def test_several_hosts_become_arguments_of_libpq():
    result = arguments_of("postgres://ana:p%40ss@one:5433,two.example/memagent?sslmode=require")
    assert (result["host"], result["port"], result["dbname"]) == (
        "one,two.example",
        "5433,5432",
        "memagent",
    )
    assert (result["user"], result["password"], result["sslmode"]) == ("ana", "p@ss", "require")


@pytest.mark.postgres
def test_the_writable_one_of_several_hosts_is_used(postgres_url, postgres_cluster, tmp_path):
    name = make_url(postgres_url).database
    hosts = f"host={tmp_path},{postgres_cluster.folder}&port=5432,{postgres_cluster.port}"
    writable = Database(f"postgresql+psycopg://postgres@/{name}?{hosts}")
    read_only = Database(f"{writable.url}&options=-c%20default_transaction_read_only%3Don")
    with writable.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    with pytest.raises(Exception, match="session is read-only"), read_only.connect():
        pass
    for database in (writable, read_only):
        database.close()


@pytest.mark.parametrize(
    "address", ["postgresql://u:secret-word@host:port/x", "postgresql://u:secret-word@one:1:2/x"]
)
def test_an_invalid_address_is_a_setting_error_without_the_password(address):
    with pytest.raises(SettingError, match="MEMAGENT_DATABASE_URL") as caught:
        arguments_of(address)
    assert "secret-word" not in str(caught.value)
