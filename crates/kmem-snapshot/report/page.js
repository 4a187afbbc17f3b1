'use strict';
/* The report of kmem. Its data stand in the page as JSON: counts of each row at each moment, as
 * pairs of a moment and the value from there on. Names are shown as text, never as markup. */
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const count = data.times.length;
  const $ = (id) => document.getElementById(id);
  const make = (tag, set = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(set)) {
      if (key in node && key !== 'list') node[key] = value; else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  const svg = (tag, set, ...children) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [key, value] of Object.entries(set)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  /* Numbers as texts. */
  const size = (bytes) => {
    const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let value = Math.abs(bytes), unit = -1;
    if (value < 1024) return `${bytes} B`;
    while (value >= 1023.95 && unit < units.length - 1) { value /= 1024; unit++; }
    return `${bytes < 0 ? '-' : ''}${value.toFixed(1)} ${units[unit]}`;
  };
  const number = (value) => value.toLocaleString('en-US');
  const share = (part, all) => `${(all > 0 ? 100 * part / all : 0).toFixed(1)} %`;
  const clock = (ms) => {
    const seconds = ms / 1000;
    if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, '0');
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  };

  /* Values of all moments from pairs. */
  const expand = (pairs) => {
    const all = new Float64Array(count);
    for (let i = 0; i < pairs.length; i += 2) all.fill(pairs[i + 1], pairs[i]);
    return all;
  };
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = (lists) => {
    const all = new Float64Array(count);
    for (const list of lists) for (let t = 0; t < count; t++) all[t] += list[t];
    return all;
  };

  const rows = data.rows.map((row) => ({
    ...row, bytes: expand(row.bytes), calls: expand(row.calls),
  }));
  const series = (items) => ({
    bytes: sum(items.map((item) => item.bytes)), calls: sum(items.map((item) => item.calls)),
  });
  const grouped = (items, key) => {
    const map = new Map();
    for (const item of items) {
      const name = key(item);
      if (!map.has(name)) map.set(name, []);
      map.get(name).push(item);
    }
    return map;
  };
  const sites = data.sites.map((site) => ({ ...site, rows: [] }));
  for (const row of rows) sites[row.site].rows.push(row);
  for (const site of sites) {
    Object.assign(site, series(site.rows));
    site.peak = most(site.bytes);
  }
  const heap = sites.filter((site) => !site.mapped);
  const outside = sites.filter((site) => site.mapped);
  const modules = [...grouped(heap, (site) => site.module || '(none)')].map(([name, of]) => {
    const all = series(of);
    return { name, ...all, peak: most(all.bytes) };
  });
  const groups = data.groups.map((of) => {
    const bytes = expand(of.bytes);
    return { name: of.name, bytes, calls: expand(of.calls), peak: most(bytes) };
  });
  const classes = data.classes.map((of) => {
    const [active, slabs] = [expand(of.active), expand(of.slabs)];
    return { ...of, active, slabs, slab: of.pages * 4096 };
  });
  const account = Object.fromEntries(
    Object.entries(data.account).map(([name, pairs]) => [name, expand(pairs)]));
  const live = sum(heap.map((site) => site.bytes));
  const objects = sum(heap.map((site) => site.calls));
  const peak = live.reduce((best, value, t) => (value > live[best] ? t : best), 0);

  const state = {
    t: count - 1, tab: 'sites', filter: '', sort: {}, all: false, zoom: [], hover: null,
  };

  /* Head. */
  document.title = `${data.title} - kmem report`;
  $('title').textContent = data.title;
  $('facts').textContent = data.facts.join(' · ');
  if (data.notes.length) {
    $('notes').hidden = false;
    $('notes').querySelector('summary').textContent =
      data.notes.length === 1 ? '1 note' : `${data.notes.length} notes`;
    $('notes').querySelector('ul').append(...data.notes.map((text) => make('li', {}, text)));
  }

  const waste = (t) => classes.reduce(
    (all, of) => all + of.slabs[t] * of.slab - of.active[t] * of.size, 0);
  const tiles = () => {
    const t = state.t, of = [
      [size(live[t]), count > 1 ? 'live at this time' : 'live'],
      [number(objects[t]), 'objects'],
    ];
    if (count > 1) {
      of.push([size(live[peak]), `peak, at ${clock(data.times[peak])}`]);
      of.push([size(live[count - 1]), 'at the end']);
    }
    if (account.resident) of.push([size(account.resident[t]), 'resident']);
    if (classes.length) of.push([size(waste(t)), 'free room in slabs']);
    $('tiles').replaceChildren(...of.map(([value, name]) =>
      make('div', { className: 'tile' }, make('b', {}, value), make('span', {}, name))));
  };

  /* Chart: the largest sites as stacked areas. */
  const top = [...heap].sort((a, b) => b.peak - a.peak).slice(0, 9).filter((s) => s.peak > 0);
  const rest = heap.filter((site) => !top.includes(site));
  const areas = top.map((site, at) => ({
    name: site.function, site, bytes: site.bytes, color: `var(--c${at})`,
  }));
  if (rest.length) {
    areas.push({
      name: `${rest.length} other sites`, bytes: sum(rest.map((s) => s.bytes)), color: 'var(--c9)',
    });
  }
  const PAD = { left: 64, right: 8, top: 8, bottom: 22 };
  const nice = (value) => {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(value, 1)) / 10));
    const scaled = value / unit, step = 10 ** Math.floor(Math.log10(Math.max(scaled, 1)));
    return unit * step * [1, 2, 5, 10].find((n) => n * step >= scaled);
  };
  /* Milliseconds between two marks of the time axis. */
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000,
    120000, 300000, 600000, 1200000, 1800000, 3600000, 7200000, 14400000, 21600000, 43200000];
  let x = () => 0;
  let at = () => 0;
  const chart = () => {
    if (count < 2) { $('time').hidden = true; return; }
    const width = $('chart').clientWidth;
    const height = matchMedia('(max-width: 640px)').matches ? 200 : 240;
    const inner = { w: width - PAD.left - PAD.right, h: height - PAD.top - PAD.bottom };
    const end = data.times[count - 1] || 1;
    const high = Math.max(most(live), 1), step = nice(high / 5);
    const y = (bytes) => PAD.top + inner.h * (1 - bytes / high);
    x = (t) => PAD.left + inner.w * data.times[t] / end;
    at = (px) => {
      const ms = (px - PAD.left) / inner.w * end;
      let best = 0;
      for (let t = 1; t < count; t++) {
        if (Math.abs(data.times[t] - ms) < Math.abs(data.times[best] - ms)) best = t;
      }
      return best;
    };
    const root = svg('svg', {
      viewBox: `0 0 ${width} ${height}`, role: 'img',
      'aria-label': 'Live bytes of the largest sites',
    });
    const below = new Float64Array(count);
    for (const area of areas) {
      const up = [], down = [];
      for (let t = 0; t < count; t++) {
        down.push(`${x(t).toFixed(1)},${y(below[t]).toFixed(1)}`);
        below[t] += Math.max(area.bytes[t], 0);
        up.push(`${x(t).toFixed(1)},${y(below[t]).toFixed(1)}`);
      }
      root.append(svg('polygon', {
        points: [...up, ...down.reverse()].join(' '), fill: area.color,
      }));
    }
    for (let value = 0; value <= high; value += step) {
      const line = { x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) };
      root.append(svg('line', { ...line, class: 'grid', 'stroke-opacity': .6 }));
      root.append(svg('text', {
        x: PAD.left - 6, y: y(value) + 4, 'text-anchor': 'end',
      }, size(Math.round(value))));
    }
    const between = end / Math.max(2, Math.floor(inner.w / 90));
    const day = 86400000;
    const tick = STEPS.find((ms) => ms >= between) ?? day * Math.ceil(between / day);
    for (let ms = 0; ms <= end; ms += tick) {
      const px = PAD.left + inner.w * ms / end;
      const anchor = px > width - 30 ? 'end' : 'middle';
      root.append(svg('text', { x: px, y: height - 6, 'text-anchor': anchor }, clock(ms)));
    }
    const line = (name) => svg('line', { class: name, y1: PAD.top, y2: height - PAD.bottom });
    root.append(line('hover'), line('cursor'));
    $('chart').replaceChildren(root, make('div', { id: 'tip', hidden: true }));
    cursor();
  };
  const cursor = () => {
    const line = document.querySelector('#chart .cursor');
    if (!line) return;
    line.setAttribute('x1', x(state.t));
    line.setAttribute('x2', x(state.t));
    const over = document.querySelector('#chart .hover');
    over.style.display = state.hover === null ? 'none' : '';
    $('tip').hidden = state.hover === null;
    if (state.hover === null) return;
    const t = state.hover, px = x(t);
    over.setAttribute('x1', px);
    over.setAttribute('x2', px);
    const lines = [...areas].sort((a, b) => b.bytes[t] - a.bytes[t]).slice(0, 5);
    $('tip').replaceChildren(
      make('b', {}, `${clock(data.times[t])}: ${size(live[t])}`),
      ...lines.map((area) => make('div', {}, `${size(area.bytes[t])} ${area.name}`)));
    const width = $('chart').clientWidth, own = $('tip').offsetWidth;
    $('tip').style.left = `${px > width / 2 ? Math.max(px - own - 10, 0) : px + 10}px`;
  };
  const legend = () => {
    $('legend').replaceChildren(...areas.map((area) => {
      const color = make('i');
      color.style.background = area.color;
      const text = `${area.name} ${size(area.bytes[state.t])}`;
      const button = make('button', { type: 'button', title: area.site?.where ?? '' }, color, text);
      if (area.site) button.onclick = () => { $('filter').value = area.name; filtered(); };
      return make('li', {}, button);
    }));
  };

  /* Tables. */
  const TABS = {
    sites: {
      name: 'Sites', rows: heap, sort: ['now', -1],
      columns: ['now', 'objects', 'peak', 'end', 'function', 'where', 'module'],
    },
    flame: { name: 'Flame graph' },
    groups: {
      name: 'Groups', rows: groups, sort: ['now', -1],
      columns: ['now', 'objects', 'peak', 'end', 'name'],
    },
    modules: {
      name: 'Modules', rows: modules, sort: ['now', -1],
      columns: ['now', 'objects', 'peak', 'end', 'name'],
    },
    classes: {
      name: 'Size classes', rows: classes, sort: ['waste', -1],
      columns: ['class', 'active', 'slabs', 'held', 'room', 'waste', 'part'],
    },
    outside: {
      name: 'Outside of the heap', rows: outside, sort: ['now', -1],
      columns: ['now', 'peak', 'end', 'function', 'where'],
    },
  };
  const room = (row) => row.slabs[state.t] * row.slab;
  const held = (row) => row.active[state.t] * row.size;
  const COLUMNS = {
    now: { name: 'Size', get: (row) => row.bytes[state.t], show: size },
    objects: { name: 'Objects', get: (row) => row.calls[state.t], show: number },
    peak: { name: 'Peak', get: (row) => row.peak, show: size, wide: true },
    end: { name: 'End', get: (row) => row.bytes[count - 1], show: size, wide: true },
    function: { name: 'Function', get: (row) => row.function, text: true },
    where: { name: 'Where', get: (row) => row.where, text: true, dim: true, wide: true },
    module: { name: 'Module', get: (row) => row.module, text: true, dim: true, wide: true },
    name: { name: 'Name', get: (row) => row.name, text: true },
    class: { name: 'Class', get: (row) => row.size, show: size },
    active: { name: 'Objects', get: (row) => row.active[state.t], show: number },
    slabs: { name: 'Slabs', get: (row) => row.slabs[state.t], show: number, wide: true },
    held: { name: 'Live', get: held, show: size },
    room: { name: 'In slabs', get: room, show: size, wide: true },
    waste: { name: 'Free room', get: (row) => room(row) - held(row), show: size },
    part: { name: 'Free', get: (row) => 1 - held(row) / (room(row) || 1),
      show: (part) => share(part, 1) },
  };
  if (count < 2) COLUMNS.peak = COLUMNS.end = null;
  const LINES = 100;
  const words = (row) => [row.function, row.where, row.module, row.name, row.size]
    .filter((of) => of !== undefined).join(' ').toLowerCase();
  const table = (tab) => {
    const columns = tab.columns.filter((key) => COLUMNS[key]);
    const [by, way] = state.sort[state.tab] ?? tab.sort;
    const get = COLUMNS[by].get;
    const shown = tab.rows.filter((row) => words(row).includes(state.filter))
      .map((row) => [get(row), row])
      .sort(([a], [b]) => way * (typeof a === 'string' ? a.localeCompare(b) : a - b))
      .map(([, row]) => row);
    const css = (key) => [COLUMNS[key].text ? 'text' : 'number', COLUMNS[key].wide ? 'wide' : '',
      COLUMNS[key].dim ? 'where' : ''].join(' ');
    const head = make('tr', {}, ...columns.map((key) => {
      const button = make('button', { type: 'button' }, COLUMNS[key].name);
      button.onclick = () => {
        const first = COLUMNS[key].text ? 1 : -1;
        state.sort[state.tab] = [key, by === key ? -way : first];
        view();
        document.querySelector(`th[data-key=${key}] button`).focus();
      };
      const cell = make('th', { className: css(key), scope: 'col', 'data-key': key }, button);
      if (by === key) cell.setAttribute('aria-sort', way < 0 ? 'descending' : 'ascending');
      return cell;
    }));
    const lines = state.all ? shown : shown.slice(0, LINES);
    const body = lines.map((row) => make('tr', {}, ...columns.map((key) => {
      const { get, show } = COLUMNS[key];
      const cell = make('td', { className: css(key) }, show ? show(get(row)) : get(row));
      // A narrow screen has no column of places.
      if (key === 'function') cell.dataset.where = row.where;
      return cell;
    })));
    const parts = [make('table', {}, make('thead', {}, head), make('tbody', {}, ...body))];
    if (state.tab === 'classes' && shown.length) {
      const [all, used] = [room, held].map((of) => shown.reduce((a, row) => a + of(row), 0));
      parts.unshift(make('p', { className: 'note' },
        `${size(used)} live in ${size(all)} of slabs: ${share(all - used, all)} is free room.`));
    }
    if (!shown.length) parts.push(make('p', { className: 'note' }, 'No row matches.'));
    if (lines.length < shown.length) {
      const more = make('button', { type: 'button', className: 'more' },
        `Show all ${shown.length} rows`);
      more.onclick = () => { state.all = true; view(); };
      parts.push(more);
    }
    return parts;
  };

  /* Flame graph: callers above, what they call below them. */
  const tree = () => {
    const root = { name: 'all', where: '', bytes: 0, calls: 0, children: new Map(), path: [] };
    for (const row of rows) {
      const site = sites[row.site], bytes = row.bytes[state.t];
      if (site.mapped || bytes <= 0) continue;
      const frames = row.frames.length ? [...row.frames].reverse() : [-1 - row.site];
      let node = root;
      const add = () => { node.bytes += bytes; node.calls += row.calls[state.t]; };
      add();
      for (const id of frames) {
        if (!node.children.has(id)) {
          const [name, where] = id < 0 ? [site.function, site.where] : data.frames[id];
          const path = [...node.path, id];
          node.children.set(id, { name, where, bytes: 0, calls: 0, children: new Map(), path });
        }
        node = node.children.get(id);
        add();
      }
    }
    return root;
  };
  const flame = () => {
    const HEIGHT = 24, root = tree(), box = make('div', { id: 'flame' });
    const frame = make('p', { id: 'frame', 'aria-live': 'polite' });
    let zoomed = root;
    const above = [root];
    for (const id of state.zoom) {
      const next = zoomed.children.get(id);
      if (!next) { state.zoom = zoomed.path; break; }
      zoomed = next;
      above.push(zoomed);
    }
    const tell = (node) => {
      frame.textContent = `${node.name}: ${size(node.bytes)} in ${number(node.calls)} objects, ` +
        `${share(node.bytes, root.bytes)}${node.where ? `, ${node.where}` : ''}`;
    };
    let deepest = 0;
    const draw = (node, left, width, depth, parent) => {
      if (width < 0.12 || depth > 64) return null;
      deepest = Math.max(deepest, depth);
      const button = make('button', { type: 'button', tabIndex: -1 },
        width > 3 ? node.name : '');
      button.setAttribute('aria-label', `${node.name}, ${size(node.bytes)}`);
      button.style.left = `${left}%`;
      button.style.width = `${width}%`;
      button.style.top = `${depth * HEIGHT}px`;
      button.classList.toggle('hit', state.filter !== '' &&
        `${node.name} ${node.where}`.toLowerCase().includes(state.filter));
      button.onclick = () => { state.zoom = node.path; view(); $('flame').querySelector(
        '[tabindex="0"]').focus(); };
      button.onmouseenter = button.onfocus = () => tell(node);
      button.onkeydown = (event) => {
        const to = { ArrowUp: parent, ArrowDown: button.first, ArrowLeft:
          button.before, ArrowRight: button.after, Escape: null }[event.key];
        if (event.key === 'Escape') { state.zoom = []; view(); }
        if (to) { event.preventDefault(); to.focus(); }
      };
      box.append(button);
      return button;
    };
    const walk = (node, left, width, depth, parent) => {
      const button = draw(node, left, width, depth, parent);
      if (!button) return null;
      let before = null;
      const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
      for (const child of children) {
        const part = width * child.bytes / node.bytes;
        const next = walk(child, left, part, depth + 1, button);
        if (!next) break;
        button.first ??= next;
        next.before = before;
        if (before) before.after = next;
        before = next;
        left += part;
      }
      return button;
    };
    let parent = null;
    above.slice(0, -1).forEach((node, depth) => {
      const button = draw(node, 0, 100, depth, parent);
      button.classList.add('above');
      if (parent) parent.first = button;
      parent = button;
    });
    const last = root.bytes > 0 ? walk(zoomed, 0, 100, above.length - 1, parent) : null;
    if (last) last.tabIndex = 0;
    if (parent && last) parent.first = last;
    box.style.height = `${(deepest + 1) * HEIGHT}px`;
    tell(zoomed);
    const parts = [frame, box];
    if (state.zoom.length) {
      const back = make('button', { type: 'button', className: 'more', id: 'unzoom' }, 'Show all');
      back.onclick = () => { state.zoom = []; view(); };
      parts.unshift(back);
    }
    if (!rows.some((row) => row.frames.length > 1)) {
      parts.push(make('p', { className: 'note' },
        'Callers were not told apart: kmem record --depth 8 does that.'));
    }
    return parts;
  };

  /* Views. */
  const shown = Object.keys(TABS).filter((key) => key === 'flame' || TABS[key].rows.length);
  const tabs = () => {
    $('tabs').replaceChildren(...shown.map((key) => {
      const button = make('button', { type: 'button', id: `tab-${key}`, role: 'tab' },
        TABS[key].name);
      button.setAttribute('aria-selected', String(key === state.tab));
      button.tabIndex = key === state.tab ? 0 : -1;
      const go = (key) => {
        state.tab = key;
        state.all = false;
        tabs();
        view();
        $(`tab-${key}`).focus();
      };
      button.onclick = () => go(key);
      button.onkeydown = (event) => {
        const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (way) go(shown[(shown.indexOf(key) + way + shown.length) % shown.length]);
      };
      return button;
    }));
  };
  const view = () => {
    $('view').replaceChildren(...(state.tab === 'flame' ? flame() : table(TABS[state.tab])));
    $('view').setAttribute('aria-labelledby', `tab-${state.tab}`);
  };
  const filtered = () => {
    state.filter = $('filter').value.trim().toLowerCase();
    state.all = false;
    view();
  };
  const move = (t) => {
    state.t = Math.min(Math.max(t, 0), count - 1);
    $('slider').value = state.t;
    $('moment').textContent = clock(data.times[state.t]);
    $('slider').setAttribute('aria-valuetext', clock(data.times[state.t]));
    tiles();
    cursor();
    legend();
    view();
  };

  $('slider').max = count - 1;
  $('slider').oninput = () => move(Number($('slider').value));
  $('to-start').onclick = () => move(0);
  $('to-peak').onclick = () => move(peak);
  $('to-end').onclick = () => move(count - 1);
  $('filter').oninput = filtered;
  const over = (event) => at(event.clientX - $('chart').getBoundingClientRect().left);
  $('chart').onpointermove = (event) => { state.hover = over(event); cursor(); };
  $('chart').onpointerleave = () => { state.hover = null; cursor(); };
  $('chart').onclick = (event) => move(over(event));
  addEventListener('resize', chart);
  tabs();
  chart();
  move(count > 1 ? peak : 0);
})();
