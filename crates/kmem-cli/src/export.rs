//! `kmem export`: metrics and profiles over HTTP.
//!
//! ```text
//! server  the sockets: connections, their time limits, their number
//! ```
//!
//! The pages are made by `kmem_snapshot::export`.

mod server;

use std::net::{SocketAddr, TcpListener};

use kmem_snapshot::export::{Bounds, Exporter, Selection};

use crate::failure::{Failure, say};
use crate::options::Chosen;

/// Arguments of `kmem export`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chosen: Chosen,
    /// Choose the call sites of the kernel of this machine, in /proc/allocinfo
    #[arg(long, group = "chosen")]
    kernel: bool,
    /// Listen on this address. There is no password: only this machine reaches the default
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9178")]
    listen: SocketAddr,
    /// Export the N largest call sites of each process and of the kernel, and the sum of the others
    #[arg(long, value_name = "N", default_value_t = Bounds::default().sites)]
    sites: usize,
    /// Export the N largest groups of each process, and the sum of the others
    #[arg(long, value_name = "N", default_value_t = Bounds::default().groups)]
    groups: usize,
    /// Export at most N processes
    #[arg(long, value_name = "N", default_value_t = Bounds::default().processes)]
    processes: usize,
    /// Tell call sites apart by the group that pays, with the label group
    #[arg(long)]
    by_group: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let selection = Selection { kernel: args.kernel, ..args.chosen.selection() };
    let bounds = Bounds { sites: args.sites, groups: args.groups, processes: args.processes };
    let exporter = Exporter::new(selection).within(bounds).by_group(args.by_group);
    let address = args.listen;
    let failed = |error| {
        Failure::Trouble(format!(
            "cannot listen on {address}: {error}; choose another with --listen"
        ))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    if !at.ip().is_loopback() {
        say(&format!("{at} may be open to the network, and there is no password"));
    }
    say(&format!("listening on http://{at}/metrics"));
    server::run(listener, exporter)
        .map_err(|error| Failure::Trouble(format!("cannot serve on {at}: {error}")))
}
