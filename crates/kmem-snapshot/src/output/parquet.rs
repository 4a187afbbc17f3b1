//! Rows as a Parquet file: one row group, compressed by zstd, strings in dictionaries.
//!
//! Rows are sorted by module, file and line. Unknown values are null. Times are plain numbers,
//! because not every reader knows timestamps in nanoseconds.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::escape::printable;
use crate::reading::Reading;
use crate::sites::{Origin, Site};

/// The columns, in order.
const SCHEMA: &str = "message kmem {
    REQUIRED INT64 ts_ns;
    REQUIRED BINARY host (STRING);
    REQUIRED INT32 pid (INTEGER(32,false));
    REQUIRED BINARY exe (STRING);
    OPTIONAL BINARY build_id (STRING);
    REQUIRED BINARY kind (STRING);
    OPTIONAL BINARY group (STRING);
    OPTIONAL BINARY module (STRING);
    OPTIONAL BINARY file (STRING);
    OPTIONAL INT32 line (INTEGER(32,false));
    REQUIRED BINARY func (STRING);
    OPTIONAL INT64 addr_rel (INTEGER(64,false));
    REQUIRED INT64 live_bytes;
    REQUIRED INT64 live_objects (INTEGER(64,false));
    OPTIONAL INT64 alloc_bytes_total (INTEGER(64,false));
    OPTIONAL INT64 alloc_objects_total (INTEGER(64,false));
    OPTIONAL INT64 peak_bytes;
    REQUIRED BOOLEAN accurate;
    OPTIONAL INT32 node (INTEGER(32,false));
    OPTIONAL BINARY cause (STRING);
}";

/// Numbers of the columns by which rows are sorted: `ts_ns`, `module`, `file`, `line`.
const SORTED: [i32; 4] = [0, 7, 8, 9];

/// Writes the file.
pub(super) fn write(
    out: &mut impl Write,
    reading: &Reading,
    rows: &[Site],
    cause: Option<&str>,
) -> io::Result<()> {
    out.write_all(&file(reading, rows.iter().collect(), cause).map_err(io::Error::other)?)
}

fn file(
    reading: &Reading,
    mut rows: Vec<&Site>,
    cause: Option<&str>,
) -> Result<Vec<u8>, ParquetError> {
    let key = |site: &Site| {
        let place = site.origin.fields();
        (name(place.module), name(place.file), place.line)
    };
    rows.sort_by_cached_key(|site| key(site));
    let sorted =
        SORTED.map(|column_idx| SortingColumn { column_idx, descending: false, nulls_first: true });
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(format!("kmem version {}", env!("CARGO_PKG_VERSION")))
        .set_sorting_columns(Some(sorted.to_vec()));
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    columns(&mut Columns(&mut group), reading, &rows, cause)?;
    group.close()?;
    file.into_inner()
}

/// Writes the columns in the order of the schema.
fn columns(
    out: &mut Columns<'_, '_>,
    reading: &Reading,
    rows: &[&Site],
    cause: Option<&str>,
) -> Result<(), ParquetError> {
    let (snapshot, of) = (&reading.snapshot, &reading.provenance);
    let text = |text: &str| ByteArray::from(printable(text).into_owned().into_bytes());
    let all = |value: &str| vec![text(value); rows.len()];
    let number = |number: u64| number as i64;
    let counts = |site: &Site| reading.counts_of(&site.tags);
    out.required::<Int64Type>(vec![number(of.time_ns); rows.len()])?;
    out.required::<ByteArrayType>(all(&of.host))?;
    out.required::<Int32Type>(vec![snapshot.pid as i32; rows.len()])?;
    out.required::<ByteArrayType>(all(&snapshot.exe))?;
    out.optional::<ByteArrayType>(rows, |site| build_id(reading, site).map(text))?;
    out.required::<ByteArrayType>(rows.iter().map(|site| text(site.kind())).collect())?;
    out.optional::<ByteArrayType>(rows, |site| site.group.as_deref().map(text))?;
    out.optional::<ByteArrayType>(rows, |site| site.origin.fields().module.map(text))?;
    out.optional::<ByteArrayType>(rows, |site| site.origin.fields().file.map(text))?;
    out.optional::<Int32Type>(rows, |site| site.origin.fields().line.map(|line| line as i32))?;
    let functions = rows.iter().map(|site| text(&site.origin.tag().function));
    out.required::<ByteArrayType>(functions.collect())?;
    out.optional::<Int64Type>(rows, |site| site.origin.fields().offset.map(number))?;
    out.required::<Int64Type>(rows.iter().map(|site| site.bytes).collect())?;
    out.required::<Int64Type>(rows.iter().map(|site| number(site.calls)).collect())?;
    out.optional::<Int64Type>(rows, |site| counts(site).map(|of| number(of.allocated_bytes)))?;
    out.optional::<Int64Type>(rows, |site| counts(site).map(|of| number(of.allocations)))?;
    // The books have one peak, that of the process.
    out.optional::<Int64Type>(rows, |_| None)?;
    let whole = snapshot.torn() == 0;
    out.required::<BoolType>(rows.iter().map(|site| whole && site.accurate).collect())?;
    out.optional::<Int32Type>(rows, |site| site.node.map(|node| node as i32))?;
    out.optional::<ByteArrayType>(rows, |_| cause.map(text))
}

fn name(name: Option<&str>) -> Option<String> {
    name.map(|name| printable(name).into_owned())
}

/// The build id of the file that holds the call of a row.
fn build_id<'a>(reading: &'a Reading, site: &Site) -> Option<&'a str> {
    let Origin::Place(place) = &site.origin else { return None };
    let mapping = reading.snapshot.maps.find(place.address)?;
    reading.provenance.build_ids.get(&mapping.path).map(String::as_str)
}

/// The columns of a row group, of which the next one is written.
struct Columns<'a, 'b>(&'a mut SerializedRowGroupWriter<'b, Vec<u8>>);

impl Columns<'_, '_> {
    fn required<T: DataType>(&mut self, values: Vec<T::T>) -> Result<(), ParquetError> {
        self.batch::<T>(&values, None)
    }

    fn optional<T: DataType>(
        &mut self,
        rows: &[&Site],
        value: impl Fn(&Site) -> Option<T::T>,
    ) -> Result<(), ParquetError> {
        let all: Vec<Option<T::T>> = rows.iter().map(|site| value(site)).collect();
        let levels: Vec<i16> = all.iter().map(|value| i16::from(value.is_some())).collect();
        let values: Vec<T::T> = all.into_iter().flatten().collect();
        self.batch::<T>(&values, Some(&levels))
    }

    fn batch<T: DataType>(
        &mut self,
        values: &[T::T],
        levels: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let missing = || ParquetError::General("the schema has too few columns".to_owned());
        let mut column = self.0.next_column()?.ok_or_else(missing)?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }
}
