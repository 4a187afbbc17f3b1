//! Rows as JSON.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::{Chain, Origin, Site};
use crate::symbols::Place;

/// The fields of a place, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fields<'a> {
    /// Function.
    pub function: Option<&'a str>,
    /// Source file, or the path of a mapped file.
    pub file: Option<&'a str>,
    /// Line in the source file.
    pub line: Option<u32>,
    /// Base name of the module, also of the main executable.
    pub module: Option<&'a str>,
    /// Address in the module.
    pub offset: Option<u64>,
}

impl Origin {
    /// The fields of the place.
    #[must_use]
    pub fn fields(&self) -> Fields<'_> {
        Fields::of(self)
    }
}

impl Site {
    /// Kind of the row in one word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.origin {
            Origin::Mapped(mapped) => mapped.kind(),
            _ if self.mapped.is_some() => "mapping",
            Origin::NotTagged => "not_tagged",
            Origin::OtherSites => "other_sites",
            Origin::Unknown(_) => "unknown",
            Origin::Static(_) => "static",
            Origin::Metadata(_) => "metadata",
            Origin::Place(_) if self.chains.is_empty() => "caller",
            Origin::Place(_) => "chain",
        }
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn of(origin: &'a Origin) -> Self {
        match origin {
            Origin::Place(place) => Self::of_place(place),
            Origin::Static(tag) => Self {
                function: Some(&tag.function),
                file: Some(&tag.file),
                line: Some(tag.line),
                module: Some(tag.module.as_str()).filter(|m| !m.is_empty()),
                offset: None,
            },
            Origin::Metadata(table) => Self { function: Some(table.name()), ..Self::default() },
            Origin::Mapped(mapped) => {
                Self { function: Some(mapped.name()), file: mapped.path(), ..Self::default() }
            }
            Origin::NotTagged | Origin::OtherSites | Origin::Unknown(_) => Self::default(),
        }
    }

    fn of_place(place: &'a Place) -> Self {
        let source = place.source.as_ref();
        Self {
            function: place.function.as_deref(),
            file: source.map(|s| s.0.as_str()),
            line: source.map(|s| s.1),
            module: Some(place.module.as_str()).filter(|m| !m.is_empty()),
            offset: Some(place.offset),
        }
    }

    pub(crate) fn write<S: SerializeStruct>(&self, out: &mut S) -> Result<(), S::Error> {
        out.serialize_field("function", &self.function)?;
        out.serialize_field("file", &self.file)?;
        out.serialize_field("line", &self.line)?;
        out.serialize_field("module", &self.module)?;
        out.serialize_field("offset", &self.offset)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Place", 5)?;
        Fields::of_place(self).write(&mut out)?;
        out.end()
    }
}

impl Serialize for Chain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Chain", 4)?;
        out.serialize_field("tag", &self.tag)?;
        out.serialize_field("bytes", &self.bytes)?;
        out.serialize_field("calls", &self.calls)?;
        let frames: Vec<&Place> = self.frames.iter().map(AsRef::as_ref).collect();
        out.serialize_field("frames", &frames)?;
        out.end()
    }
}

impl Serialize for Site {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Site", 16)?;
        match &self.group {
            Some(group) => out.serialize_field("group", &**group)?,
            None => out.skip_field("group")?,
        }
        match self.node {
            Some(node) => out.serialize_field("node", &node)?,
            None => out.skip_field("node")?,
        }
        out.serialize_field("bytes", &self.bytes)?;
        out.serialize_field("calls", &self.calls)?;
        out.serialize_field("kind", self.kind())?;
        Fields::of(&self.origin).write(&mut out)?;
        out.serialize_field("tags", &self.tags)?;
        match self.mapped {
            Some(bytes) => out.serialize_field("mapped", &bytes)?,
            None => out.skip_field("mapped")?,
        }
        match self.pinned {
            Some(of) => {
                out.serialize_field("pinned", &of.pinned)?;
                out.serialize_field("sole", &of.sole)?;
            }
            None => {
                out.skip_field("pinned")?;
                out.skip_field("sole")?;
            }
        }
        if self.accurate {
            out.skip_field("accurate")?;
        } else {
            out.serialize_field("accurate", &false)?;
        }
        if self.chains.is_empty() {
            out.skip_field("chains")?;
        } else {
            out.serialize_field("chains", &self.chains)?;
        }
        out.end()
    }
}
