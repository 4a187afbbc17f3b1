"""Makes the files of a day of a fleet out of real ones, and asks the questions of a page about them.

usage: simulate.py PAGE REAL OUT HOSTS

PAGE is docs/how-to/fleet.md, whose blocks of SQL are run. REAL is a directory that `kmem watch` has
written. OUT gets the files of HOSTS machines: a snapshot for each hour of a day. What grows, what
leaks and what is killed in them is decided here, and the answers must name exactly that. Prints
sizes and times.
"""

import os
import pathlib
import re
import sys
import time

import duckdb

HOURS = 24
BEGIN = 1_795_651_200  # A midnight.
DAY = time.strftime("%Y-%m-%d", time.gmtime(BEGIN))
DEPLOY_HOUR = 12
MIB = 1 << 20


class Fleet:
    """The machines, and what goes wrong on some of them."""

    def __init__(self, hosts, services):
        self.hosts, self.services = hosts, services

    def service(self, host):
        return self.services[host % len(self.services)]

    def leaks(self, host):
        """The line of the function keep_session gains 16 MiB in each hour."""
        return self.service(host) == "web" and host // len(self.services) % 25 == 1

    def is_killed(self, host):
        return self.service(host) == "cache" and host // len(self.services) % 50 == 3

    def build(self, host, hour):
        """The service api gets a new build at noon, which holds three indexes."""
        is_new = self.service(host) == "api" and hour >= DEPLOY_HOUR
        return ("b2" if is_new else "b1") * 20

    def extra(self, host, hour):
        """A function, and the bytes that it holds beside those of the real process."""
        if self.leaks(host):
            return "keep_session", 16 * MIB * hour
        if self.build(host, hour).startswith("b2"):
            return "build_index", 40 * MIB
        return "", 0


def quoted(column):
    return f'"{column}"'


def blocks(page):
    """The blocks of SQL in a page, by their names."""
    return dict(re.findall(r"^```sql (\S+)\n(.*?)^```$", page, re.M | re.S))


def write(real, out, fleet):
    """Writes the files of all machines."""
    db = duckdb.connect()
    db.execute(
        f"""create table real as
        select *, regexp_extract(filename, '/([a-z]+)[.][0-9]+[.][^/]*$', 1) as service
        from read_parquet('{real}/*/*/*/*/*.interval.parquet', filename = true)"""
    )
    # The last reading of each process, with the place of a row among those of its function.
    db.execute(
        """create or replace table real as
        select *, row_number() over (partition by service, func order by live_bytes desc) as nth
        from real where ts_ns = (select max(ts_ns) from real r where r.pid = real.pid)"""
    )
    stand_in = db.execute("select distinct service from real").fetchall()
    assert len(stand_in) == len(fleet.services), stand_in
    columns = [name for name, *_ in db.execute("describe real").fetchall()]
    columns = [name for name in columns if name not in ("service", "host", "filename", "nth")]
    for host in range(fleet.hosts):
        name, service = f"host-{host:04}", fleet.service(host)
        for hour in range(HOURS):
            moment = (BEGIN + hour * 3600 + host % 60) * 10**9
            build, (func, extra) = fleet.build(host, hour), fleet.extra(host, hour)
            causes = ["interval"]
            if fleet.is_killed(host) and hour == 18:
                causes.append("oom-kill")
            for cause in causes:
                if cause == "oom-kill":
                    func, extra, moment = "fill_cache", 2048 * MIB, moment + 1800 * 10**9
                changed = {
                    "ts_ns": str(moment),
                    "pid": f"{1000 + host}::uinteger",
                    "cause": f"'{cause}'",
                    # Each machine holds a little more or less.
                    "live_bytes": f"(live_bytes * (0.9 + hash(func || '{name}{hour}') % 200 / 1000))"
                    f"::bigint + case when func = '{func}' and nth = 1 then {extra} else 0 end",
                }
                wanted = ", ".join(f'{changed.get(of, quoted(of))} as {quoted(of)}' for of in columns)
                where = out / f"dt={DAY}/service={service}/host={name}/build={build}"
                where.mkdir(parents=True, exist_ok=True)
                file = where / f"{service}.{1000 + host}.{hour:02}.{cause}.parquet"
                db.execute(
                    f"copy (select '{name}' as host, {wanted} from real where service = '{service}')"
                    f" to '{file}' (format parquet, compression zstd)"
                )


def check(name, rows, fleet):
    """Fails unless the answer to a question is what was decided."""
    every = range(fleet.hosts)
    if name == "grown.sql":
        service, func, _, before, now = rows[0]
        assert (service, func) == ("api", "build_index"), rows
        assert 35 < now - before < 45, rows
        assert all(row[0] == "api" and row[4] - row[3] < 2 for row in rows[1:]), rows
    elif name == "leaks.sql":
        leaking = [f"host-{host:04}" for host in every if fleet.leaks(host)]
        assert sorted(row[1] for row in rows) == leaking[: len(rows)], rows
        assert len(rows) == min(len(leaking), 20), rows
        assert all(row[2] == "keep_session" and 15 < row[4] < 17 for row in rows), rows
    elif name == "killed.sql":
        killed = [f"host-{host:04}" for host in every if fleet.is_killed(host)]
        assert [row[0] for row in rows] == killed, rows
        assert all(row[1:3] == ("cache", "fill_cache") and row[4] > 2048 for row in rows), rows


def duck(setup):
    db = duckdb.connect()
    db.execute(setup)
    return lambda query: db.execute(query).fetchall()


def clickhouse(setup):
    import chdb.session

    db = chdb.session.Session()
    db.query(setup)
    value = lambda text: float(text) if re.fullmatch(r"-?[0-9.]+(e[+-]?\d+)?", text) else text

    def ask(query):
        text = str(db.query(query, "TabSeparated"))
        return [tuple(value(field) for field in line.split("\t")) for line in text.splitlines()]

    return ask


def main():
    page, real, out = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
    fleet = Fleet(int(sys.argv[4]), ["api", "batch", "cache", "web"])
    sql = blocks(page.read_text())
    questions = ["grown.sql", "leaks.sql", "killed.sql"]
    os.makedirs(out / "fleet")
    began = time.monotonic()
    write(real, out / "fleet", fleet)
    print(f"{fleet.hosts} machines, {HOURS} hours, made in {time.monotonic() - began:.0f} s")
    os.chdir(out)
    duckdb_view = sql["duckdb.sql"]
    compact = lambda text: text.replace("fleet/*/*/*/*/*.parquet", "compact/*/*/*/*.parquet")
    duck(duckdb_view)(re.sub("20[0-9]{2}-[0-9]{2}-[0-9]{2}", DAY, sql["compact.sql"]))
    engines = [("DuckDB", duck, duckdb_view)]
    try:
        import chdb

        engines.append(("ClickHouse", clickhouse, sql["clickhouse.sql"]))
    except ImportError:
        print("without ClickHouse", file=sys.stderr)
    for tree in ("fleet", "compact"):
        files = list(pathlib.Path(tree).rglob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        print(f"{tree}: {len(files)} files, {size / MIB:.1f} MiB")
        for engine, connect, view in engines:
            ask = connect(view if tree == "fleet" else compact(view))
            for question in questions:
                began = time.monotonic()
                rows = ask(sql[question])
                took = time.monotonic() - began
                check(question, rows, fleet)
                print(f"{tree:8} {engine:11} {question:10} {took:7.2f} s  {len(rows)} rows")


main()
