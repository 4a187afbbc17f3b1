//! Changes as JSON.

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use super::Change;
use crate::sites::Fields;

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Change", 9)?;
        out.serialize_field("state", &self.state())?;
        out.serialize_field("delta", &self.delta())?;
        out.serialize_field("before", &self.before)?;
        out.serialize_field("after", &self.after)?;
        Fields::of(&self.origin).write(&mut out)?;
        out.end()
    }
}
