// A server that never forgets a request: the array keeps each of them, on the heap of V8.
const kept = [];

function remember(id) {
  kept.push({ id, path: '/orders/' + id, headers: { accept: 'a' + id, host: 'b' + id } }); // the leak
}

for (let id = 0; id < 600000; id++) {
  remember(id);
}
console.log(kept.length);
