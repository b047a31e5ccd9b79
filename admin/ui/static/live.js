// Updates the page when something that it shows has changed, copies commands, and
// handles keys. All pages work without it, but do not update themselves.
'use strict';
(() => {
  const base = '/ui';
  const live = document.getElementById('live');

  // Ages as kubectl prints them.
  const age = s => {
    const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
    if (s < 120) return Math.floor(s) + 's';
    if (m < 10) return m + 'm' + (Math.floor(s) % 60 ? Math.floor(s) % 60 + 's' : '');
    if (m < 180) return m + 'm';
    if (h < 8) return h + 'h' + (m % 60 ? m % 60 + 'm' : '');
    if (h < 48) return h + 'h';
    if (d < 8) return d + 'd' + (h % 24 ? h % 24 + 'h' : '');
    return d + 'd';
  };
  // Ages use the clock of the relay: the local clock may be wrong.
  let skew = 0;
  const readClock = () => {
    const asOf = document.querySelector('.asof time');
    skew = Date.parse(asOf.dateTime) - Date.now();
  };
  const tick = () => {
    const now = Date.now() + skew;
    const set = (e, text) => { if (e.textContent !== text) e.textContent = text; };
    for (const e of document.querySelectorAll('time[data-age]')) set(e, age(Math.max(0, now - Date.parse(e.dateTime)) / 1000));
    for (const e of document.querySelectorAll('time[data-left]')) set(e, age(Math.max(0, Date.parse(e.dateTime) - now) / 1000));
  };

  const dress = () => {
    for (const b of document.querySelectorAll('button.copy[hidden]')) b.hidden = false;
    tick();
  };

  // One update at a time, and at most a tenth of the time.
  let wanted = false, busy = false;
  const renew = async () => {
    wanted = true;
    if (busy || document.hidden) return;
    busy = true;
    while (wanted && !document.hidden) {
      wanted = false;
      const began = performance.now();
      try {
        const answer = await fetch(location.href, { headers: { Accept: 'text/html' }, redirect: 'error' });
        const type = answer.headers.get('Content-Type') || '';
        if (type.startsWith('text/html')) morph(await answer.text());
      } catch (e) {
        console.error(e);
        say(false);
      }
      await new Promise(r => setTimeout(r, Math.max(500, 10 * (performance.now() - began))));
    }
    busy = false;
  };
  const morph = text => {
    const next = new DOMParser().parseFromString(text, 'text/html');
    const callbacks = {
      beforeNodeMorphed: (old, cur) => {
        // Forms and dialogs stay as the user left them.
        if (old instanceof HTMLElement && old.matches('form.search, #live, dialog')) return false;
        if (old instanceof HTMLButtonElement && old.classList.contains('copy')) cur.hidden = false;
        return true;
      },
    };
    for (const id of ['top', 'main']) {
      const from = document.getElementById(id), to = next.getElementById(id);
      if (from && to) Idiomorph.morph(from, to, { morphStyle: 'outerHTML', ignoreActiveValue: true, callbacks });
    }
    readClock();
    dress();
    document.dispatchEvent(new CustomEvent('renewed'));
  };

  // Hints. Tabs of one browser share a stream: a browser opens at most six connections to a host.
  const say = on => { live.hidden = false; live.textContent = on ? '● live' : '○ not connected'; live.className = on ? 'ok' : 'muted'; };
  const topics = new Set(document.body.dataset.topics.split(' ').filter(Boolean));
  // A page without topics, such as one about services, is not updated.
  const hear = list => { if (topics.size && list.some(t => topics.has(t) || t === '*')) renew(); };
  const channel = 'BroadcastChannel' in window ? new BroadcastChannel('relay' + base) : null;
  let source = null, lead = false;
  const listen = () => {
    source = new EventSource(base + '/live');
    source.onopen = () => { tell({ on: true }); say(true); hear(['*']); };
    source.onerror = () => { tell({ on: false }); say(false); };
    source.addEventListener('changed', e => { const list = e.data.split(' '); tell({ list }); hear(list); });
  };
  const tell = m => { if (channel) channel.postMessage(m); };
  if (channel) channel.onmessage = e => {
    if (e.data.ask && source) tell({ on: source.readyState === 1 });
    if ('on' in e.data) { say(e.data.on); if (e.data.on) hear(['*']); }
    if (e.data.list) hear(e.data.list);
  };
  const follow = () => {
    // The tab with the lock listens. When it closes, another tab gets the lock.
    if (navigator.locks && channel) {
      navigator.locks.request('relay-live' + base, () => new Promise(() => { lead = true; listen(); }));
      if (!lead) tell({ ask: true });
    } else {
      listen();
    }
  };
  addEventListener('visibilitychange', () => { if (!document.hidden && wanted) renew(); });

  // Copy buttons.
  document.addEventListener('click', async e => {
    const b = e.target.closest('button.copy');
    if (!b) return;
    const text = b.parentElement.querySelector('code').textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(b.parentElement.querySelector('code'));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand('copy');
    }
    b.textContent = 'Copied';
    setTimeout(() => { b.textContent = 'Copy'; }, 1500);
  });

  // Search while the user types.
  let typing = 0;
  document.addEventListener('input', e => {
    const form = e.target.closest('form.search');
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      const q = new URLSearchParams(new FormData(form));
      for (const [k, v] of [...q]) if (!v) q.delete(k);
      const text = q.toString();
      history.replaceState(null, '', form.getAttribute('action') + (text ? '?' + text : ''));
      renew();
    }, 250);
  });

  // Keys.
  const pages = {};
  document.querySelectorAll('#keys dt').forEach((dt, i) => {
    const keys = dt.querySelectorAll('kbd');
    if (keys.length === 2) pages[keys[1].textContent] = dt.nextElementSibling.textContent;
  });
  let going = 0;
  document.addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input, textarea, select')) return;
    const q = document.getElementById('q'), keys = document.getElementById('keys');
    if (e.key === '/' && q) {
      e.preventDefault();
      q.focus();
      q.select();
    } else if (e.key === '?') {
      e.preventDefault();
      if (!keys.open) keys.showModal();
    } else if (e.key === 'g') {
      going = Date.now();
    } else if (Date.now() - going < 1500 && pages[e.key]) {
      for (const a of document.querySelectorAll('header nav a')) if (a.firstChild.textContent.trim() === pages[e.key]) a.click();
    }
  });

  readClock();
  dress();
  setInterval(tick, 1000);
  follow();
})();
