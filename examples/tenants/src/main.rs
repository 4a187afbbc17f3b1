//! A service on axum that stores values for its tenants. Each tenant is a group with a limit. At
//! the limit it gets `503 Service Unavailable`, and the others are served.
//!
//! ```text
//! tenants ADDRESS NAME=BYTES..       tenants 127.0.0.1:8080 small=1000000 large=64000000
//!
//! PUT    /NAME          stores the body; 503: the tenant is at its limit
//! GET    /NAME          number of values, bytes that they cost, refusals
//! DELETE /NAME          frees the values
//! ```
//!
//! The group pays while the tenant's future is polled, on whichever thread (`Group::run`). What the
//! tenant may use up is allocated with `try_reserve` within `fallible`, so that it can be refused.
//! Small allocations of the libraries cannot be refused: they go above the limit.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use http_body_util::BodyExt;
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Kmem, Limit, Refusal, fallible};

#[global_allocator]
static KMEM: Kmem = Kmem::new();

/// Refusals that the program was told of. The function that counts them takes no lock.
static REFUSALS: AtomicU64 = AtomicU64::new(0);

struct Tenant {
    group: Group<Linux>,
    values: Mutex<Vec<Vec<u8>>>,
    /// Requests that were answered with 503.
    refused: AtomicU64,
}

type Tenants = Arc<HashMap<String, Arc<Tenant>>>;

/// The answer to a request that does not fit into the tenant's limit.
struct AtLimit;

impl IntoResponse for AtLimit {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")], "the tenant is at its limit\n")
            .into_response()
    }
}

/// Appends to `all` if the tenant's limit permits it.
fn append(all: &mut Vec<u8>, part: &[u8]) -> Result<(), AtLimit> {
    fallible(|| all.try_reserve_exact(part.len())).map_err(|_| AtLimit)?;
    all.extend_from_slice(part);
    Ok(())
}

/// Reads a body to its end, into memory of the tenant.
async fn read(mut body: Body, length: usize) -> Result<Result<Vec<u8>, AtLimit>, axum::Error> {
    let mut value = Vec::new();
    if fallible(|| value.try_reserve_exact(length)).is_err() {
        return Ok(Err(AtLimit));
    }
    while let Some(frame) = body.frame().await {
        if let Ok(part) = frame?.into_data()
            && append(&mut value, &part).is_err()
        {
            return Ok(Err(AtLimit));
        }
    }
    Ok(Ok(value))
}

async fn store(Extension(tenant): Extension<Arc<Tenant>>, request: Request) -> Response {
    let length = request.headers().get("content-length");
    let length = length.and_then(|text| text.to_str().ok()?.parse().ok()).unwrap_or(0);
    let stored = read(request.into_body(), length).await.map(|value| {
        let value = value?;
        let mut values = tenant.values.lock().unwrap_or_else(PoisonError::into_inner);
        fallible(|| values.try_reserve(1)).map_err(|_| AtLimit)?;
        values.push(value);
        Ok::<_, AtLimit>(values.len())
    });
    match stored {
        Ok(Ok(count)) => (StatusCode::CREATED, format!("{count}\n")).into_response(),
        Ok(Err(full)) => {
            tenant.refused.fetch_add(1, Ordering::Relaxed);
            full.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

/// Bytes that a group pays for an allocation: its memory, and a word for each object or page.
fn cost(at: *const u8) -> usize {
    // SAFETY: a live allocation, which nothing frees during the call.
    let bytes = unsafe { KMEM.usable_size(at.cast_mut()) };
    if bytes > 32 << 10 { bytes / 4096 * 4100 } else { bytes + 4 }
}

async fn count(Extension(tenant): Extension<Arc<Tenant>>) -> String {
    let values = tenant.values.lock().unwrap_or_else(PoisonError::into_inner);
    let buffers = values.iter().filter(|value| value.capacity() > 0);
    let mut bytes: usize = buffers.map(|value| cost(value.as_ptr())).sum();
    if values.capacity() > 0 {
        bytes += cost(values.as_ptr().cast());
    }
    format!("{} {bytes} {}\n", values.len(), tenant.refused.load(Ordering::Relaxed))
}

async fn free(Extension(tenant): Extension<Arc<Tenant>>) {
    let mut values = tenant.values.lock().unwrap_or_else(PoisonError::into_inner);
    *values = Vec::new();
}

/// Has the tenant in the path pay for the rest of the request.
async fn charge(
    State(tenants): State<Tenants>,
    Path(name): Path<String>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(tenant) = tenants.get(&name).cloned() else {
        return (StatusCode::NOT_FOUND, "no such tenant\n").into_response();
    };
    let group = tenant.group.clone();
    request.extensions_mut().insert(tenant);
    group.run(async move { next.run(request).await }).await
}

/// Creates a tenant from `NAME=BYTES`.
fn tenant(argument: &str) -> Result<(String, Arc<Tenant>), Box<dyn Error>> {
    let (name, max) = argument.split_once('=').ok_or(format!("no NAME=BYTES: {argument}"))?;
    let group = KMEM.group(GroupId::ROOT)?.create(name)?;
    group.set(Limit::Max, Some(max.parse()?))?;
    let values = Mutex::default();
    Ok((name.to_owned(), Arc::new(Tenant { group, values, refused: AtomicU64::new(0) })))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().ok_or("usage: tenants ADDRESS NAME=BYTES..")?;
    let tenants = arguments.map(|argument| tenant(&argument)).collect::<Result<_, _>>()?;
    KMEM.tell_refusals(&|_: &Refusal| {
        REFUSALS.fetch_add(1, Ordering::Relaxed);
    })?;
    let tenants: Tenants = Arc::new(tenants);
    let app = Router::new()
        .route("/{tenant}", put(store).get(count).delete(free))
        .layer(middleware::from_fn_with_state(tenants, charge))
        .route(
            "/",
            axum::routing::get(|| async { format!("{}\n", REFUSALS.load(Ordering::Relaxed)) }),
        );
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
