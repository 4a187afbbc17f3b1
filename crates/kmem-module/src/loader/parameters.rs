//! Values of the parameters of live modules, as files in `/sys/module/NAME/parameters` show them.

use super::Loader;
use crate::alloc::{self, Shared};
use crate::error::{Errno, Error, Result};
use crate::module::{Held, Module, lock};
use crate::registry::Slot;

impl Loader {
    /// Names of the parameters of a live module that can be read, sorted: those with permissions,
    /// whose variables are not given back after init.
    ///
    /// # Errors
    /// `ENOENT`: there is no such live module; `ENOMEM`.
    pub fn parameters(&self, module: &str) -> Result<Vec<String>> {
        let (_held, module) = self.hold(module)?;
        let body = lock(&module.body);
        let mut names = Vec::new();
        if let Some(image) = &body.image {
            for param in body.params.iter().filter(|param| param.is_readable(image)) {
                alloc::push(&mut names, alloc::text(&param.name)?)?;
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The present value of a parameter of a live module, as the kernel shows it: numbers in
    /// decimal, or in hexadecimal for `hexint`; `Y` or `N`; elements with commas between them. Of a
    /// string, at most 4096 bytes. In the name, `-` equals `_`.
    ///
    /// A `charp` must point to a string or be null, whatever the module did to it.
    ///
    /// # Errors
    /// `ENOENT`: there is no such live module, or it has no such parameter that can be read;
    /// `ENOMEM`.
    pub fn parameter(&self, module: &str, name: &str) -> Result<String> {
        let (_held, module) = self.hold(module)?;
        let body = lock(&module.body);
        let normal = |b: u8| if b == b'-' { b'_' } else { b };
        let param = body.image.as_ref().and_then(|image| {
            let is = |param: &str| param.bytes().map(normal).eq(name.bytes().map(normal));
            let mut readable = body.params.iter().filter(|param| param.is_readable(image));
            Some((readable.find(|param| is(&param.name))?, image))
        });
        let (param, image) = param.ok_or_else(|| {
            let what = format_args!("{} has no parameter {name:?} that can be read", module.name);
            Error::new(Errno::ENOENT, what)
        })?;
        // SAFETY: the module is held, so it is live. Its strings are the caller's responsibility,
        // as it says above.
        let value = alloc::written(unsafe { param.value(image) });
        value.ok_or_else(|| Error::nomem(0, "the value of a parameter"))
    }

    /// Holds a live module.
    fn hold(&self, name: &str) -> Result<(Held, Shared<Module>)> {
        let tables = self.0.registry.lock();
        let live = match tables.names.get(name) {
            Some(Slot::Live(module)) => Held::new(module).map(|held| (held, module.clone())),
            _ => None,
        };
        let none = || Error::new(Errno::ENOENT, format_args!("no live module called {name}"));
        live.ok_or_else(none)
    }
}
