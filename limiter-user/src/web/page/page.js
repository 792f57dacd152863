'use strict';

/* What comes from the network or from an operator is only ever text here. */

const EVERY = 1000, LATE = 5000, PATIENCE = 4000;
const SVG = 'http://www.w3.org/2000/svg';
const COLORS = {
  source_rate: 'c0', source_bandwidth: 'c1', prefix_rate: 'c2', policy_rate: 'c3', banned: 'c4',
  new_source_rate: 'c6', denied: 'c5', malformed: 'c7',
};
const byId = id => document.getElementById(id);

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/* Numbers */

const trimmed = (number, digits) => number.toFixed(digits).replace(/\.0$/, '');

function short(number) {
  if (number < 10) return trimmed(number, 1);
  for (const [unit, size] of [['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
    if (number >= 0.9995 * size && (unit !== 'k' || number >= 9999.5)) {
      const value = number / size;
      return trimmed(value, value < 99.95 ? 1 : 0) + ' ' + unit;
    }
  }
  return number.toFixed(0);
}
const bits = bytes => short(bytes * 8).replace(/ ?([kMG]?)$/, ' $1bit/s');
const percent = share => share >= 1.995 ? short(share) + ' ×' : trimmed(share * 100, share < 0.1 ? 1 : 0) + ' %';
const words = name => name.replaceAll('_', ' ');

function duration(seconds) {
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const at = parts.findIndex(([size]) => seconds >= size);
  if (at < 0) return '0 s';
  const [size, unit] = parts[at];
  const first = Math.floor(seconds / size) + ' ' + unit;
  if (at === parts.length - 1) return first;
  const rest = Math.floor(seconds % size / parts[at + 1][0]);
  return rest ? first + ' ' + rest + ' ' + parts[at + 1][1] : first;
}

function memory(bytes) {
  return bytes < 1 << 30 ? Math.ceil(bytes / (1 << 20)) + ' MiB' : (bytes / (1 << 30)).toFixed(1) + ' GiB';
}

/* Tables: a column is its title, its classes, and what a row has there. */

function table(section, columns, rows, empty) {
  const head = element('tr', {}, ...columns.map(([title, kind]) => element('th', { class: kind }, title)));
  const body = rows.map(row => element('tr', {}, ...columns.map(([, kind, value]) => {
    const shown = value(row);
    return element('td', { class: kind }, ...(Array.isArray(shown) ? shown : [shown]));
  })));
  if (!rows.length) body.push(element('tr', {}, element('td', { class: 'empty', colspan: columns.length }, empty)));
  document.querySelector(section + ' table').replaceChildren(
    element('thead', {}, head), element('tbody', {}, ...body));
}

/* Packets per second over time: what passed below, what was dropped above it. */

const chart = { layers: [], last: 0, step: 1, length: 0, cursor: null };
const SPAN = 300, HEIGHT = 224, LEFT = 48, RIGHT = 8, TOP = 12, BOTTOM = 20;

function layers(history) {
  const made = [{ name: 'passed', color: 'pass', opacity: 1, values: history.passed }];
  const of = (series, word, opacity) => {
    const sum = values => values.reduce((sum, value) => sum + value, 0);
    for (const [reason, values] of Object.entries(series).sort(([, a], [, b]) => sum(b) - sum(a))) {
      made.push({ name: words(reason) + word, color: COLORS[reason] || 'c8', opacity, values });
    }
  };
  of(history.would_drop, ', would be dropped', 0.5);
  of(history.dropped, ', dropped', 1);
  return made;
}

function ticks(most) {
  const rough = Math.max(most, 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(it => it * power).find(it => it >= rough * 0.999);
  return Array.from({ length: Math.max(Math.ceil(most / step), 1) + 1 }, (_, at) => at * step);
}

function draw() {
  const width = Math.max(byId('chart').clientWidth, 200);
  const sums = new Array(chart.length).fill(0);
  for (const layer of chart.layers) layer.values.forEach((value, at) => { sums[at] += value; });
  const lines = ticks(Math.max(0, ...sums));
  const most = lines[lines.length - 1];
  const x = at => LEFT + (width - LEFT - RIGHT) * (SPAN - chart.length + at + 1) / SPAN;
  const y = value => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most;
  const said = chart.layers.map(it => it.name + ' ' + short(it.values.at(-1) || 0)).join('; ');
  const svg = shape('svg', { viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': 'packets per second now: ' + said });
  for (const line of lines) {
    svg.append(shape('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(line), y2: y(line) }));
    svg.append(shape('text', { x: LEFT - 6, y: y(line) + 4, 'text-anchor': 'end' }, short(line)));
  }
  for (let minutes = 0; minutes <= SPAN / 60; minutes += width < 500 ? 2 : 1) {
    const at = x(chart.length - 1 - minutes * 60);
    const anchor = minutes === 0 ? 'end' : minutes === SPAN / 60 ? 'start' : 'middle';
    svg.append(shape('text', { x: at, y: HEIGHT - 5, 'text-anchor': anchor }, minutes ? `−${minutes} min` : 'now'));
  }
  const base = new Array(chart.length).fill(0);
  for (const layer of chart.layers) {
    const upper = [], lower = [];
    layer.values.forEach((value, at) => {
      lower.push(`${x(at).toFixed(1)} ${y(base[at]).toFixed(1)}`);
      base[at] += value;
      upper.push(`${x(at).toFixed(1)} ${y(base[at]).toFixed(1)}`);
    });
    if (upper.length < 2) continue;
    const area = shape('path', { d: 'M' + upper.join('L') + 'L' + lower.reverse().join('L') + 'Z', 'fill-opacity': layer.opacity });
    area.style.fill = `var(--${layer.color})`;
    svg.append(area);
  }
  const shown = chart.cursor === null ? chart.length - 1 : Math.min(chart.cursor, chart.length - 1);
  if (chart.cursor !== null && shown >= 0) {
    svg.append(shape('line', { class: 'cursor', x1: x(shown), x2: x(shown), y1: TOP, y2: HEIGHT - BOTTOM }));
  }
  byId('chart').replaceChildren(svg);
  const time = new Date((chart.last - (chart.length - 1 - shown) * chart.step) * 1000);
  byId('when').textContent = chart.cursor === null ? 'last 5 minutes' : 'at ' + time.toLocaleTimeString();
  byId('legend').replaceChildren(...chart.layers.map(layer => {
    const mark = element('i');
    mark.style.background = `var(--${layer.color})`;
    mark.style.opacity = layer.opacity;
    return element('li', {}, mark, layer.name + ' ', element('b', {}, short(layer.values[shown] || 0)));
  }));
}

function point(event) {
  const box = byId('chart').getBoundingClientRect();
  const at = Math.round((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT) * SPAN - 1) - SPAN + chart.length;
  chart.cursor = at >= 0 && at < chart.length ? at : null;
  draw();
}

/* Sections */

function header(view) {
  const status = view.status;
  byId('host').textContent = view.host;
  const health = byId('health');
  health.textContent = status.health;
  health.className = 'badge ' + (status.health === 'ok' ? 'good' : 'bad');
  const mode = byId('mode');
  mode.hidden = !status.observe;
  mode.textContent = 'observing: nothing is dropped';
  mode.className = 'badge warn';
  byId('about').textContent = `version ${status.version}, up ${duration(status.uptime_seconds)}`;
  document.title = (status.attack ? 'ATTACK · ' : status.health === 'ok' ? '' : status.health + ' · ') + view.host + ' · limiterd';
}

function notice(kind, title, text) {
  return element('p', { class: 'notice ' + kind }, element('b', {}, title), element('span', {}, text));
}

function notices(view) {
  const status = view.status, shown = [];
  const attack = status.attack;
  if (attack) {
    const reasons = [...new Set(attack.reasons.map(it => words(it.reason)))].slice(0, 3).join(', ');
    const from = attack.sources.slice(0, 3).map(it => it.source).join(', ');
    const what = attack.observed ? 'would be dropped' : 'dropped';
    shown.push(notice('bad', 'Attack', `for ${duration(attack.duration_seconds)}: ${short(attack.dropped_pps)} packets/s ${what} (most: ${short(attack.peak_pps)}); ${reasons}${from ? '; from ' + from : ''}`));
  }
  if (status.confirm.pending) {
    shown.push(notice('warn', 'A change waits to be confirmed', `it is taken back in ${duration(status.confirm.deadline_seconds || 0)} unless somebody runs: limiterctl config confirm`));
  }
  for (const problem of status.problems) shown.push(notice('bad', 'Problem', problem));
  byId('notices').replaceChildren(...shown);
}

function totals(view) {
  const total = view.top.total;
  const received = total.passed_pps + total.dropped_pps + total.would_drop_pps;
  const shown = [
    ['received', short(received) + '/s', ''],
    ['passed', short(total.passed_pps) + '/s', ''],
    ['dropped', short(total.dropped_pps) + '/s', total.dropped_pps > 0 ? 'bad' : ''],
    ['passed, but would be dropped', short(total.would_drop_pps) + '/s', total.would_drop_pps > 0 ? 'warn' : ''],
    ['received', bits(total.bytes_per_second), ''],
  ];
  byId('now').replaceChildren(...shown.map(([name, value, kind]) =>
    element('div', {}, element('b', { class: kind }, value), element('span', {}, name))));
}

function limit(level) {
  const parts = [];
  if (level.rate) parts.push(`${level.rate}, burst ${level.burst}`);
  if (level.bandwidth) parts.push(level.bandwidth);
  return parts.join('; ');
}

function limits(policy) {
  const shown = [['source', policy.limit]];
  const wider = policy.limit.per_prefix;
  if (wider) shown.push([`/${wider.ipv4} and /${wider.ipv6}`, wider]);
  if (policy.limit.total) shown.push(['everybody', policy.limit.total]);
  const lines = shown.map(([name, level]) => [name, limit(level)]).filter(([, text]) => text);
  return lines.length ? lines.map(([name, text]) => element('div', {}, element('span', { class: 'faint' }, name + ' '), text)) : 'no limit';
}

function use(it) {
  const kind = it.share > 1 ? ' over' : it.share > 0.8 ? ' near' : '';
  const bar = element('i');
  bar.style.width = Math.min(it.share, 1) * 100 + '%';
  const who = (it.level === 'total' ? 'everybody' : it.who) + (it.unit === 'bytes' ? ', bytes' : '');
  return element('div', { class: 'use' }, element('div', { class: 'meter' + kind }, bar),
    element('span', { class: 'n' }, percent(it.share)), element('span', { class: 'who' }, who));
}

/* On a phone, what would be dropped has no column of its own. */
function dropped(rates) {
  const shown = [short(rates.dropped_pps)];
  if (rates.would_drop_pps > 0) shown.push(element('div', { class: 'warn narrow' }, 'would ' + short(rates.would_drop_pps)));
  return shown;
}

function policies(view) {
  table('#policies', [
    ['policy', '', it => [element('b', {}, it.limit.name), it.limit.mode === 'enforce' ? null : element('div', { class: 'warn' }, it.limit.mode)].filter(Boolean)],
    ['limit', 'wide', limits],
    ['passed/s', 'n', it => short(it.rates.passed_pps)],
    ['dropped/s', 'n', it => dropped(it.rates)],
    ['would drop/s', 'n wide', it => short(it.rates.would_drop_pps)],
    ['use of the limit', '', it => it.use_of_limits.length ? it.use_of_limits.map(use) : element('span', { class: 'faint' }, 'nothing seen')],
  ], view.policies, 'No policies.');
}

function sources(view) {
  const top = view.top;
  byId('window').textContent = `last ${top.window_seconds.toFixed(0)} s, from ${short(top.samples)} samples` + (top.lost ? `, ${short(top.lost)} lost` : '');
  table('#sources', [
    ['source', 'address', it => it.source],
    ['policy', 'wide', it => it.policy || '–'],
    ['dropped/s', 'n', dropped],
    ['would drop/s', 'n wide', it => short(it.would_drop_pps)],
    ['passed/s', 'n', it => short(it.passed_pps)],
    ['± of sum', 'n wide', it => short(it.error_bound)],
    ['why', '', it => it.reason ? words(it.reason) : '–'],
  ], top.sources, 'Nothing was seen.');
}

function bans(view) {
  const { count, first } = view.bans;
  byId('bancount').textContent = count > first.length ? `${count}; those that end first` : String(count);
  table('#bans', [
    ['prefix', 'address', it => it.prefix],
    ['time left', 'n', it => it.expires_in_seconds === null ? 'for ever' : duration(it.expires_in_seconds)],
    ['why', '', it => it.reason || (it.origin === 'config' ? 'configuration' : '–')],
  ], first, 'Nothing is banned.');
}

function interfaces(view) {
  table('#interfaces', [
    ['name', '', it => it.name],
    ['mode', '', it => it.mode],
    ['link', '', it => it.link],
    ['state', '', it => it.attached
      ? element('span', { class: 'good' }, 'protected') : element('span', { class: 'bad' }, 'NOT protected')],
  ], view.status.interfaces, 'No interface is protected.');
}

function state(view) {
  const status = view.status, config = status.config;
  const file = config.file ? config.file + (config.changed_on_disk ? ', changed since it was read' : '') : 'none';
  const shown = [
    ['generation', String(status.generation)],
    ['pending confirm', status.confirm.pending ? `taken back in ${duration(status.confirm.deadline_seconds || 0)}` : 'none'],
    ['configuration', file + (config.last_reload_successful ? '' : '; the last reload failed')],
    ['new sources', `${short(status.new_sources.tracked_per_second)}/s get a bucket, others share ${short(status.new_sources.untracked_per_second)}/s`],
    ['memory', `${memory(status.memory.maps_bytes)} for ${status.memory.max_sources.toLocaleString('en')} sources of each family, ${status.memory.cpus} CPUs`],
    ['program', status.object_sha256.slice(0, 12)],
  ];
  document.querySelector('#state dl').replaceChildren(...shown.flatMap(([name, value]) =>
    [element('dt', {}, name), element('dd', {}, value)]));
}

function show(view) {
  header(view);
  notices(view);
  totals(view);
  Object.assign(chart, {
    layers: layers(view.history), last: view.history.last, step: view.history.step_seconds, length: view.history.passed.length,
  });
  draw();
  policies(view);
  sources(view);
  bans(view);
  interfaces(view);
  state(view);
}

/* Once a second, while somebody looks. */

let answered = Date.now();

async function view() {
  try {
    const answer = await fetch('page.json', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(await answer.text());
    return await answer.json();
  } catch (error) {
    if (Date.now() - answered > LATE) {
      document.body.classList.add('stale');
      document.title = 'no answer · limiterd';
      byId('notices').replaceChildren(notice('bad', 'limiterd does not answer', `since ${new Date(answered).toLocaleTimeString()}. A shield that is attached stays in force. (${error.message.trim()})`));
    }
    return null;
  }
}

async function refresh() {
  const seen = document.hidden ? null : await view();
  setTimeout(refresh, EVERY);
  if (seen) {
    answered = Date.now();
    document.body.classList.remove('stale');
    show(seen);
  }
}

window.addEventListener('resize', draw);
byId('chart').addEventListener('pointermove', point);
byId('chart').addEventListener('pointerdown', point);
byId('chart').addEventListener('pointerleave', () => { chart.cursor = null; draw(); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) answered = Date.now(); });
refresh();
