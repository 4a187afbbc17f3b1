//! The server: hyper on one thread, and readings on another.
//!
//! A client cannot keep others waiting. Its head must come within [`HEAD`], and the whole exchange
//! has a time, too. Beyond [`MAX_CONNECTIONS`] the oldest connection is closed. Readings go one
//! after another on a thread of their own, and all that wait for `/metrics` share the next one. A
//! connection waits for its turn itself: when it is closed, its reading is not begun. At most
//! [`MAX_DIFFERENCES`] clients wait between the two readings of a difference.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use kmem_snapshot::export::{Answer, Exporter, Progress};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::failure::say;

/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Time for a request and its answer, without a wait that the request asks for.
const EXCHANGE: Duration = Duration::from_secs(60);
/// Longest wait that a request may ask for, and then some.
const WAIT: Duration = Duration::from_secs(310);
/// Most connections at once.
const MAX_CONNECTIONS: usize = 64;
/// Most differences at once: each holds the rows of its first reading.
const MAX_DIFFERENCES: usize = 4;
/// Most bytes of the head of a request.
const MAX_HEAD: usize = 16 << 10;
/// Time without new connections after the system has refused one.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of the server that all connections share.
struct Server {
    shared: Mutex<Shared>,
    /// One permit: to read.
    turn: Arc<Semaphore>,
    /// Permits to ask for a difference.
    differences: Semaphore,
}

/// The exporter, and its last page of metrics.
struct Shared {
    exporter: Exporter,
    /// The page, its `Accept`, and the time at which its reading began.
    last: Option<(Instant, Option<String>, Answer)>,
    said: Vec<String>,
}

/// Serves until the process is ended.
///
/// # Errors
///
/// Errors of the runtime, and of taking over the socket.
pub(super) fn run(listener: TcpListener, exporter: Exporter) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(2)
        .build()?;
    let server = Arc::new(Server::new(exporter));
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            // Without descriptors, say. Those of other connections become free.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            open.retain(|connection| !connection.is_finished());
            if open.len() >= MAX_CONNECTIONS
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
            }
            open.push_back(tokio::spawn(serve(stream, Arc::clone(&server))).abort_handle());
        }
    })
}

/// Serves one request of a connection.
async fn serve(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(|request| answer(request, Arc::clone(&server)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off, or is too slow, gets no answer.
    let _ = tokio::time::timeout(EXCHANGE + WAIT, connection).await;
}

async fn answer(
    request: Request<Incoming>,
    server: Arc<Server>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read && request.uri().path() != "/debug/pprof/symbol" {
        let mut response = Response::new(Full::new(Bytes::from_static(b"only GET and HEAD\n")));
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    // A header may come in several lines.
    let accept: Vec<&str> =
        request.headers().get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let accept = (!accept.is_empty()).then(|| accept.join(","));
    let Answer { status, content_type, body } = read(path, accept, server).await;
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// Reads on another thread, when it is this request's turn.
async fn read(path: String, accept: Option<String>, server: Arc<Server>) -> Answer {
    let asked = Instant::now();
    let is_difference = Exporter::is_difference(&path);
    let permit = is_difference.then(|| server.differences.try_acquire());
    if let Some(Err(_)) = permit {
        return text(503, "too many differences at once: ask again later\n");
    }
    let progress = server.reading(move |shared| begin(asked, &path, accept, shared)).await;
    match progress {
        Some(Progress::Done(answer)) => answer,
        Some(Progress::Wait(time, pending)) => {
            tokio::time::sleep(time).await;
            let finish = move |shared: &Mutex<Shared>| lock(shared).exporter.finish(pending);
            server.reading(finish).await.unwrap_or_else(trouble)
        }
        None => trouble(),
    }
}

impl Server {
    fn new(exporter: Exporter) -> Self {
        let shared = Mutex::new(Shared { exporter, last: None, said: Vec::new() });
        let differences = Semaphore::new(MAX_DIFFERENCES);
        Self { shared, turn: Arc::new(Semaphore::new(1)), differences }
    }

    /// Waits for its turn, then reads on another thread. A caller that is dropped while it waits
    /// leaves no reading behind. One that has begun keeps its turn until it ends.
    async fn reading<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Mutex<Shared>) -> T + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.turn).acquire_owned().await.ok()?;
        let server = Arc::clone(self);
        let read = move || {
            let _turn = turn;
            read(&server.shared)
        };
        tokio::task::spawn_blocking(read).await.ok()
    }
}

fn trouble() -> Answer {
    text(500, "the reading failed\n")
}

fn text(status: u16, body: &str) -> Answer {
    Answer { status, content_type: "text/plain; charset=utf-8", body: body.as_bytes().to_vec() }
}

/// Begins an answer. A page of metrics whose reading began after the request is good for it.
fn begin(asked: Instant, path: &str, accept: Option<String>, shared: &Mutex<Shared>) -> Progress {
    let mut shared = lock(shared);
    let is_metrics = path == "/metrics";
    if is_metrics
        && let Some((began, of, answer)) = &shared.last
        && *began >= asked
        && *of == accept
    {
        return Progress::Done(answer.clone());
    }
    let began = Instant::now();
    let progress = shared.exporter.begin(path, accept.as_deref());
    if let Progress::Done(answer) = &progress
        && is_metrics
    {
        shared.last = Some((began, accept, answer.clone()));
        shared.tell();
    }
    progress
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Says what the last scrape could not read, when that is new.
    fn tell(&mut self) {
        let failures = self.exporter.failures();
        failures.iter().filter(|new| !self.said.contains(new)).for_each(|new| say(new));
        self.said = failures.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use kmem_snapshot::export::Selection;

    use super::*;

    /// Runs without sockets, with the number of a process that there cannot be.
    fn run<T>(test: impl AsyncFnOnce(Arc<Server>) -> T) -> T {
        let selection = Selection { pids: vec![u32::MAX], ..Selection::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(test(Arc::new(Server::new(Exporter::new(selection)))))
    }

    fn ask(path: &str, accept: Option<String>, server: &Arc<Server>) -> AbortHandle {
        tokio::spawn(read(path.to_owned(), accept, Arc::clone(server))).abort_handle()
    }

    /// Lets all tasks go on until each of them waits.
    async fn let_all_wait() {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_request_that_is_dropped_before_its_turn_reads_nothing() {
        run(async |server| {
            let held = Arc::clone(&server.turn).acquire_owned().await.unwrap();
            // Requests with different formats share no reading.
            let asked: Vec<_> =
                (0..100).map(|n| ask("/metrics", Some(n.to_string()), &server)).collect();
            let_all_wait().await;
            asked.iter().for_each(AbortHandle::abort);
            let_all_wait().await;
            drop(held);
            let page = read("/metrics".to_owned(), None, Arc::clone(&server)).await;
            let page = String::from_utf8(page.body).unwrap();
            // Each reading of the absent process is an error that counts.
            let readings = "kmem_scrape_errors_total{reason=\"absent\"} 1\n";
            assert!(page.contains(readings), "{page}");
        });
    }

    #[test]
    fn a_few_differences_wait_at_once_and_a_dropped_one_makes_room() {
        run(async |server| {
            let path = "/debug/pprof/heap?seconds=300";
            let held = Arc::clone(&server.turn).acquire_owned().await.unwrap();
            let asked: Vec<_> = (0..MAX_DIFFERENCES).map(|_| ask(path, None, &server)).collect();
            let_all_wait().await;
            let refused = read(path.to_owned(), None, Arc::clone(&server)).await;
            assert_eq!(refused.status, 503);
            asked[1].abort();
            let_all_wait().await;
            drop(held);
            let answer = read(path.to_owned(), None, Arc::clone(&server)).await;
            assert_eq!(answer.status, 404);
        });
    }
}
