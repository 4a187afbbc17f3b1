//! A server whose memory can be looked at: `/metrics` for Prometheus, `/debug/pprof/heap` for
//! pprof.
//!
//! ```sh
//! cargo run -p kmem-snapshot --example profiled_server
//! go tool pprof -top http://ADDRESS/debug/pprof/heap
//! ```
//!
//! Any HTTP server will do: [`Exporter::answer`] takes the path of a request, and gives a status, a
//! content type and a body.

use std::error::Error;

use kmem_snapshot::export::{Exporter, Selection};
use tiny_http::{Header, Response, Server};

#[global_allocator]
static MEMORY: kmem_core::Kmem = kmem_core::Kmem::new();

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let server = Server::http("127.0.0.1:0")?;
    println!("http://{}", server.server_addr());
    let mut exporter = Exporter::new(Selection::this_process());
    let mut orders = Vec::new();
    for request in server.incoming_requests() {
        if let Some(order) = request.url().strip_prefix("/order/") {
            orders.push(order.repeat(1000));
            request.respond(Response::from_string("ordered\n"))?;
            continue;
        }
        let accept = request.headers().iter().find(|header| header.field.equiv("Accept"));
        let answer = exporter.answer(request.url(), accept.map(|header| header.value.as_str()));
        let content_type = Header::from_bytes("Content-Type", answer.content_type);
        let response = Response::from_data(answer.body).with_status_code(answer.status);
        request.respond(response.with_header(content_type.map_err(|()| "a bad header")?))?;
    }
    Ok(())
}
