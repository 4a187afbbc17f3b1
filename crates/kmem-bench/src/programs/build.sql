-- About 100 MB of rows and indexes, then queries that scan, sort and join.
PRAGMA journal_mode = off;
PRAGMA synchronous = off;
PRAGMA cache_size = -65536;
CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, body TEXT);
INSERT INTO item
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 220000)
SELECT i, i * 7919 % 1000, 'name ' || (i * 104729 % 1000003), printf('%.*c', 250 + i % 200, 'b') FROM n;
CREATE INDEX by_name ON item (name);
CREATE INDEX by_kind ON item (kind, name);
SELECT count(*), sum(length(body)) FROM item;
SELECT kind, count(*), max(name) FROM item GROUP BY kind ORDER BY 3 DESC LIMIT 3;
SELECT count(*) FROM item a JOIN item b ON b.name = a.name AND b.kind = a.kind WHERE a.kind < 200;
SELECT group_concat(name, ',') FROM (SELECT name FROM item WHERE kind = 77 ORDER BY body, name LIMIT 5);
