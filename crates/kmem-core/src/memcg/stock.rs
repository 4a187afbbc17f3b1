//! Charging on a CPU (the kernel's `memcg_stock_pcp`), with stocks that are paid for in advance. It
//! has a slow path for a stock that runs out or overflows, and for a group at its limit.
//!
//! ```text
//! alloc --> the array's stock on this CPU (one store takes the item and pays)
//!            | another group's, or empty
//!            v
//!           the group's stock on this CPU, in bytes
//!            | empty
//!            v
//!           the group and all above it: a batch, else just what is needed
//!            | at its max
//!            v
//!           shrinkers --> stocks of all CPUs --> refused
//! ```
//!
//! A free goes the same way back. A group, with those below it, is charged for what it uses and for
//! its stocks. On one CPU, these are at most:
//!
//! - `STOCK_BYTES` and an object for each size class,
//! - `PAGE_STOCK` for each order up to 3,
//! - `CELL_BYTES` for each of 64 cells.
//!
//! Larger blocks have no stock: one costs more than a CPU should keep.
//!
//! Context: any, but shrinkers are called: see [`super::Shrink`].

use kmem_layout::group::group_event;
use kmem_layout::word::{CHARGED_METADATA, EXT_LIVE, TAG_MASK};

use super::{AtMax, Charged, Groups, Limits, objcg_of};
use crate::class::{ArrayId, Contents, MAX_OBJECT, SizeClass};
use crate::cpu::{Area, Cell, Cleared, Slots, Stock};
use crate::os::Platform;
use crate::sync::{AtomicU32, Ordering, fence, spin};
use crate::task;
use crate::units::{ObjcgId, PAGE_SIZE, PageCount};

/// Bound of an array's stock of objects, in bytes. The stock is below it, or is one object.
const STOCK_BYTES: u32 = 16 << 10;
/// Bound of an array's stock of blocks, in pages, which the stock stays below.
const PAGE_STOCK: PageCount = PageCount(16);
/// Bound of the stock in a group's cell, in bytes, which the stock stays below.
const CELL_BYTES: u32 = 32 << 10;
/// How long [`Charging::recall`] waits for stocks of a CPU that another thread owns, in
/// milliseconds.
const PATIENCE_MS: u64 = 1000;
/// Most rounds of shrinker calls for one request.
const TRIES: u32 = 16;
/// Bytes that shrinkers are asked for beyond the need, so that not every request calls them.
pub const MORE: u64 = 32 << 10;

/// Bytes charged for an item of each array; 0 for arrays of runs.
const COSTS: [u32; 256] = {
    let mut costs = [0; 256];
    let mut array = 1;
    while array < crate::class::ARRAY_COUNT {
        costs[array] = match ArrayId(array as u8).contents() {
            Contents::Objects(class) => class.size() + CHARGED_METADATA as u32,
            Contents::Blocks(class) => pages_cost(class.pages()) as u32,
            Contents::Runs(_) => 0,
        };
        array += 1;
    }
    costs
};

/// Bound of each array's stock, in items; 0 for no stock.
const BOUNDS: [u32; 256] = {
    let mut bounds = [0; 256];
    let mut array = 1;
    while array < crate::class::ARRAY_COUNT {
        bounds[array] = match ArrayId(array as u8).contents() {
            Contents::Objects(_) if COSTS[array] > STOCK_BYTES => 1,
            Contents::Objects(_) => STOCK_BYTES / COSTS[array],
            Contents::Blocks(class) if class.is_huge() => 0,
            Contents::Blocks(class) => PAGE_STOCK.0 / class.pages().0,
            Contents::Runs(_) => 0,
        };
        array += 1;
    }
    bounds
};

const _: () = assert!(CELL_BYTES <= Stock::MAX / 2 && STOCK_BYTES / 16 <= Stock::MAX / 2);
// `adjust` accepts the cost of any object, and refuses one that exceeds the bound of a cell.
const _: () = assert!(MAX_OBJECT as u64 + CHARGED_METADATA <= Stock::MAX as u64 / 2);
const _: () = assert!(PAGE_STOCK.0 as u64 * pages_cost(PageCount::ONE) <= Stock::MAX as u64 / 2);

/// Bytes charged for pages, with an extension word for each.
pub const fn pages_cost(pages: PageCount) -> u64 {
    pages.0 as u64 * (PAGE_SIZE as u64 + CHARGED_METADATA)
}

/// Bytes charged for an object of a class.
pub const fn object_cost(class: SizeClass) -> u64 {
    COSTS[class.0 as usize] as u64
}

/// Bound of the stock on the head of an array, in items, which the stock stays below. 0: it has no
/// stock.
#[inline(always)]
pub const fn stock_bound(array: ArrayId) -> u32 {
    BOUNDS[array.0 as usize]
}

/// Bytes charged for an item of an array.
const fn item_cost(array: ArrayId) -> u32 {
    COSTS[array.0 as usize]
}

/// The price of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Price {
    /// An item of an array: an object, or a block of an order that has an array of its own.
    Item(ArrayId),
    /// Any other pages.
    Pages(PageCount),
    /// This many allocations of one page.
    Singles(u32),
}

impl Price {
    /// Bytes charged for it.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Item(array) => item_cost(array) as u64,
            Self::Pages(pages) => pages_cost(pages),
            Self::Singles(count) => count as u64 * pages_cost(PageCount::ONE),
        }
    }
}

/// Charges groups on the CPU that the calling thread runs on.
#[derive(Clone, Copy)]
pub struct Charging<'a, P> {
    /// The groups.
    pub groups: &'a Groups,
    /// The CPUs, whose areas hold the stocks.
    pub slots: &'a Slots,
    /// The platform.
    pub platform: &'a P,
}

impl<P: Platform> Charging<'_, P> {
    /// Charges a price to a group.
    ///
    /// # Errors
    /// The group that is at its limit.
    pub fn pay(&self, price: Price, objcg: ObjcgId, limits: Limits) -> Result<(), AtMax> {
        match price {
            Price::Item(array) if stock_bound(array) > 0 => self.pay_item(array, objcg, limits),
            _ => self.pay_bytes(price.bytes(), objcg, limits),
        }
    }

    /// Takes back the charge of a price.
    pub fn refund(&self, price: Price, objcg: ObjcgId) {
        match price {
            Price::Item(array) if stock_bound(array) > 0 => self.refund_item(array, objcg),
            _ => self.refund_bytes(price.bytes(), objcg),
        }
    }

    /// Pays for an item from the group's cell on this CPU, for groups that alternate on an array.
    /// False: the cell's stock is too small, or another group's.
    #[inline]
    pub fn pay_from_cell(&self, array: ArrayId, objcg: ObjcgId) -> bool {
        self.adjust_cell(objcg, -(item_cost(array) as i32))
    }

    /// Clears the extension word of an item of an array that the caller gives up. Credits the item
    /// to its group's cell on this CPU. Does neither unless the array's stock is another group's.
    /// `word` is the value of the word that the caller read.
    #[inline]
    fn refund_freed(&self, array: ArrayId, (ext, word): (&AtomicU32, u32)) -> Cleared {
        let (objcg, cost) = (objcg_of(word), item_cost(array) as i32);
        if !self.is_others(Cell::of_array(array), objcg) {
            return Cleared::Not;
        }
        self.slots.refund_freed(Cell::of_group(objcg), cost, (ext, word), CELL_BYTES)
    }

    /// Credits an item to the group's cell on this CPU, if the array's stock is another group's.
    /// Else refunds it.
    #[inline]
    pub fn refund_elsewhere(&self, array: ArrayId, objcg: ObjcgId) {
        if !self.is_others(Cell::of_array(array), objcg)
            || !self.adjust_cell(objcg, item_cost(array) as i32)
        {
            self.refund(Price::Item(array), objcg);
        }
    }

    /// Pays for an item from a stock of the group on this CPU. That is the array's, or the group's
    /// cell if the array's stock is another group's. False: it has not enough.
    #[inline]
    pub fn pay_from_stock(&self, array: ArrayId, objcg: ObjcgId) -> bool {
        let head = Cell::of_array(array);
        self.slots.adjust(head, objcg, -1, stock_bound(array), self.slot())
            || (self.is_others(head, objcg) && self.pay_from_cell(array, objcg))
    }

    /// Clears the extension word of an item of an array that the caller gives up. Takes the charge
    /// back from the word's group, to a stock on this CPU if that has room. `word` is the value
    /// that the caller read, and not of the root. False: another thread freed the item
    /// concurrently.
    #[inline]
    pub fn free_item(&self, array: ArrayId, (ext, word): (&AtomicU32, u32)) -> bool {
        let (head, bound) = (Cell::of_array(array), stock_bound(array));
        match self.slots.refund_freed(head, 1, (ext, word), bound) {
            Cleared::Paid => {}
            Cleared::Unpaid => self.refund_elsewhere(array, objcg_of(word)),
            Cleared::Not => return self.free_item_elsewhere(array, (ext, word)),
        }
        true
    }

    /// [`Self::free_item`] for an array whose stock is full or of another group.
    #[inline(never)]
    pub fn free_item_elsewhere(&self, array: ArrayId, (ext, word): (&AtomicU32, u32)) -> bool {
        let objcg = match self.refund_freed(array, (ext, word)) {
            Cleared::Paid => return true,
            Cleared::Unpaid => objcg_of(word),
            Cleared::Not => {
                // One operation: the word may get another group until it is cleared.
                let word = ext.fetch_and(TAG_MASK, Ordering::AcqRel);
                if word & EXT_LIVE == 0 {
                    return false;
                }
                objcg_of(word)
            }
        };
        if objcg != ObjcgId::ROOT {
            self.refund_elsewhere(array, objcg);
        }
        true
    }

    fn slot(&self) -> u32 {
        self.slots.hint(self.platform)
    }

    #[inline(always)]
    fn adjust_cell(&self, objcg: ObjcgId, by: i32) -> bool {
        self.slots.adjust(Cell::of_group(objcg), objcg, by, CELL_BYTES, self.slot())
    }

    fn pay_item(&self, array: ArrayId, objcg: ObjcgId, limits: Limits) -> Result<(), AtMax> {
        if self.pay_from_stock(array, objcg) {
            return Ok(());
        }
        let bound = stock_bound(array);
        // Three quarters: room is left for frees, and a refill is rare.
        let (cost, batch) = (u64::from(item_cost(array)), (bound - bound / 4).max(1));
        if batch > 1
            && let Ok(charged) = self.groups.charge(objcg, u64::from(batch) * cost, Limits::Obey)
        {
            self.put_stock(array, Stock::new(objcg, batch - 1));
            self.mind_high(charged);
            return Ok(());
        }
        self.charge(objcg, cost, limits)
    }

    fn pay_bytes(&self, bytes: u64, objcg: ObjcgId, limits: Limits) -> Result<(), AtMax> {
        if bytes <= u64::from(CELL_BYTES / 2) {
            if self.adjust_cell(objcg, -(bytes as i32)) {
                return Ok(());
            }
            let more = u64::from(CELL_BYTES / 2);
            if let Ok(charged) = self.groups.charge(objcg, bytes + more, Limits::Obey) {
                self.credit_bytes(more, objcg);
                self.mind_high(charged);
                return Ok(());
            }
        }
        self.charge(objcg, bytes, limits)
    }

    /// Returns whether a stock on this CPU is another group's.
    fn is_others(&self, cell: Cell, objcg: ObjcgId) -> bool {
        let stock = self.stock_here(cell);
        stock.amount() > 0 && stock.objcg() != objcg
    }

    /// The stock in a cell of this CPU, at this moment.
    fn stock_here(&self, cell: Cell) -> Stock {
        let area = self.slots.current(self.slot()).and_then(|cpu| self.slots.area(cpu));
        area.map_or(Stock::NONE, |area| area.stock(cell))
    }

    /// Puts a paid stock on the head of an array. Moves the stock that was there to its group's
    /// cell.
    fn put_stock(&self, array: ArrayId, stock: Stock) {
        let bytes = |stock| stock_bytes(stock, Some(array));
        let Some(before) = self.put_in(Cell::of_array(array), stock) else {
            return self.groups.uncharge(stock.objcg(), bytes(stock));
        };
        self.mind_deleted(stock.objcg());
        let (owner, bytes) = (before.objcg(), bytes(before));
        if bytes > 0 && !self.adjust_cell(owner, bytes as i32) {
            self.groups.uncharge(owner, bytes);
        }
    }

    /// Writes a paid stock in a place of this CPU. Returns the old one. `None`, without a change:
    /// the group is deleted, or see [`Slots::swap_stock`].
    fn put_in(&self, cell: Cell, stock: Stock) -> Option<Stock> {
        let objcg = stock.objcg();
        // The stock's charge keeps the entry. The pin keeps the group from being merged until the
        // stock is in place, or this thread sees that the group is deleted.
        self.groups.pin_again(objcg);
        fence(Ordering::SeqCst);
        let lives = self.groups.is_live(objcg);
        let before = lives.then(|| self.slots.swap_stock(cell, stock, self.slot())).flatten();
        self.groups.unpin(objcg);
        before
    }

    /// Credits paid bytes to the group's cell on this CPU. True: the cell was full and starts anew.
    fn credit_bytes(&self, bytes: u64, objcg: ObjcgId) -> bool {
        if bytes > u64::from(CELL_BYTES / 2) || !self.groups.is_live(objcg) {
            self.groups.uncharge(objcg, bytes);
            return false;
        }
        if self.adjust_cell(objcg, bytes as i32) {
            return false;
        }
        // The stock in the cell is full or another group's: uncharge it and start anew.
        let stock = Stock::new(objcg, bytes as u32);
        match self.put_in(Cell::of_group(objcg), stock) {
            None => {
                self.groups.uncharge(objcg, bytes);
                false
            }
            Some(before) => {
                self.mind_deleted(objcg);
                self.groups.uncharge(before.objcg(), before.amount().into());
                before.objcg() == objcg
            }
        }
    }

    fn refund_bytes(&self, bytes: u64, objcg: ObjcgId) {
        self.credit_bytes(bytes, objcg);
    }

    fn refund_item(&self, array: ArrayId, objcg: ObjcgId) {
        let cost = u64::from(item_cost(array));
        let (head, bound) = (Cell::of_array(array), stock_bound(array));
        if self.slots.adjust(head, objcg, 1, bound, self.slot()) {
            return;
        }
        if self.is_others(head, objcg) || !self.groups.is_live(objcg) {
            // If the cell was full, the next items are credited on the head.
            if self.credit_bytes(cost, objcg) {
                self.put_stock(array, Stock::new(objcg, 0));
            }
            return;
        }
        // The head has no stock, or is full.
        match self.put_in(head, Stock::new(objcg, 1)) {
            None => self.groups.uncharge(objcg, cost),
            Some(before) => {
                self.mind_deleted(objcg);
                self.groups.uncharge(before.objcg(), stock_bytes(before, Some(array)));
            }
        }
    }

    /// Charges `bytes` and no stock. If a group refuses, calls shrinkers and recalls stocks until
    /// the charge is granted.
    ///
    /// # Errors
    /// The group that refuses.
    #[cold]
    #[inline(never)]
    pub fn charge(&self, objcg: ObjcgId, bytes: u64, limits: Limits) -> Result<(), AtMax> {
        let mut at = match self.groups.charge(objcg, bytes, Limits::Obey) {
            Ok(charged) => {
                self.mind_high(charged);
                return Ok(());
            }
            Err(AtMax(at)) => at,
        };
        self.tell(at, group_event::MAX);
        if !task::is_shrinking() && self.make_room(objcg, bytes, &mut at) {
            return Ok(());
        }
        // A shrinker may have to allocate in order to free.
        if limits == Limits::Exceed || task::is_shrinking() {
            // Refused only if a counter would overflow.
            let done = self.groups.charge(objcg, bytes, Limits::Exceed).map(|_| ());
            if !task::is_shrinking() {
                self.tell(at, group_event::OOM);
                self.groups.note_over_limit(at);
                self.groups.note_over_limit(self.groups.living(objcg));
            }
            return done;
        }
        self.tell(at, group_event::OOM);
        Err(AtMax(at))
    }

    /// Calls shrinkers of the group that refused, then recalls its stocks, until a charge is
    /// granted. False: it is not. `at` is the group that refused last.
    fn make_room(&self, objcg: ObjcgId, bytes: u64, at: &mut ObjcgId) -> bool {
        let again = |at: &mut ObjcgId| match self.groups.charge(objcg, bytes, Limits::Obey) {
            Ok(_) => true,
            Err(AtMax(now)) => {
                *at = now;
                false
            }
        };
        for _ in 0..TRIES {
            let freed = self.reclaim(*at, bytes.saturating_add(MORE));
            if again(at) {
                return true;
            }
            if freed == 0 {
                break;
            }
        }
        self.recall_below(*at);
        again(at)
    }

    /// Calls the shrinkers of groups that a charge brought above their `high`.
    fn mind_high(&self, charged: Charged) {
        let Some(lowest) = charged.above_high else { return };
        if task::is_shrinking() {
            return;
        }
        for (at, block) in self.groups.charged_for(lowest) {
            let high = block.high.load(Ordering::Relaxed);
            let above = block.charged.load(Ordering::Relaxed).saturating_sub(high);
            if above > 0 {
                self.tell(at, group_event::HIGH);
                self.reclaim(at, above);
            }
        }
    }

    /// Counts an event of a group, and signals its eventfd.
    fn tell(&self, objcg: ObjcgId, event: usize) {
        if let Some(fd) = self.groups.event(objcg, event) {
            self.platform.signal_event(fd);
        }
    }

    /// Calls shrinkers of a group and those below it, to free about `bytes` bytes. Returns how many
    /// bytes they say they freed. Groups that are not above their `low` come last.
    pub fn reclaim(&self, top: ObjcgId, bytes: u64) -> u64 {
        let want = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut freed = 0;
        for spare in [true, false] {
            for id in self.groups.all_below(top) {
                if freed >= want {
                    return freed as u64;
                }
                let Ok(block) = self.groups.get(id) else { continue };
                let holds = block.charged.load(Ordering::Relaxed);
                let is_low = holds <= block.low.load(Ordering::Relaxed);
                if spare == is_low || !self.groups.has_shrinkers(id) {
                    continue;
                }
                if self.groups.pin(id).is_ok() {
                    if is_low {
                        self.tell(id.objcg(), group_event::LOW);
                    }
                    freed += task::while_shrinking(|| self.groups.shrink(id, want - freed));
                    self.groups.unpin(id.objcg());
                }
            }
        }
        freed as u64
    }

    /// Recalls a stock that this thread put in place while its group was deleted. The fence pairs
    /// with that of [`Self::recall_deleted`]: the later one of the two threads sees the other's
    /// store.
    fn mind_deleted(&self, objcg: ObjcgId) {
        fence(Ordering::SeqCst);
        if !self.groups.is_live(objcg) {
            self.recall_deleted();
        }
    }

    /// Uncharges and removes the stocks of deleted groups on all CPUs. Includes those that an
    /// earlier call left because another thread owned a CPU's area for too long.
    pub fn recall_deleted(&self) {
        fence(Ordering::SeqCst);
        self.recall(|stock| !self.groups.is_live(stock.objcg()));
    }

    /// Uncharges and removes the stocks of a group and those below it on all CPUs.
    pub fn recall_below(&self, top: ObjcgId) {
        self.recall(|stock| stock.amount() > 0 && self.groups.is_below(stock.objcg(), top));
    }

    /// Uncharges and removes the stocks on all CPUs that `which` accepts. Leaves those of a CPU
    /// whose area another thread owns for too long, and all if the platform cannot stop CPUs.
    pub fn recall(&self, which: impl Fn(Stock) -> bool) {
        let which = |stock: Stock| stock != Stock::NONE && which(stock);
        let holds = |area: &Area| Cell::all().any(|(cell, _)| which(area.stock(cell)));
        for (cpu, area) in self.slots.areas() {
            // Another thread may own the area for a moment, or longer if it is preempted. If this
            // is a signal handler that interrupted the owner, the area stays owned during this
            // call.
            let since = self.platform.now_ms();
            for tries in 0..1_000_000 {
                let late = tries > 1000 && self.platform.now_ms() - since > PATIENCE_MS;
                if late || !holds(area) {
                    break;
                }
                let mut refused = false;
                let fence = || {
                    let done = self.platform.fence_cpus();
                    refused = !done;
                    done
                };
                let Some(mut stopped) = self.slots.stop(cpu, fence) else {
                    if refused {
                        return;
                    }
                    spin();
                    self.platform.give_way();
                    continue;
                };
                for (cell, array) in Cell::all() {
                    let stock = stopped.stock(cell);
                    if which(stock) {
                        stopped.clear_stock(cell);
                        self.groups.uncharge(stock.objcg(), stock_bytes(stock, array));
                    }
                }
                break;
            }
        }
    }

    /// Calls `each` with the group of every stock on all CPUs, empty ones included.
    pub fn each_owner(&self, mut each: impl FnMut(ObjcgId)) {
        for (_, area) in self.slots.areas() {
            for (cell, _) in Cell::all() {
                each(area.stock(cell).objcg());
            }
        }
    }

    /// Calls `each` with the group and the bytes of each stock on all CPUs.
    pub fn each_stock(&self, mut each: impl FnMut(ObjcgId, u64)) {
        for (_, area) in self.slots.areas() {
            for (cell, array) in Cell::all() {
                let stock = area.stock(cell);
                if stock.amount() > 0 {
                    each(stock.objcg(), stock_bytes(stock, array));
                }
            }
        }
    }
}

impl Groups {
    /// Notes in a living group's entry that it went above a limit.
    fn note_over_limit(&self, objcg: ObjcgId) {
        if let Some(id) = self.id(objcg)
            && let Ok(block) = self.get(id)
        {
            block.over.store(1, Ordering::Relaxed);
        }
    }
}

/// Bytes charged for a stock on the head of an array, or without an array in a group's cell.
fn stock_bytes(stock: Stock, array: Option<ArrayId>) -> u64 {
    u64::from(stock.amount()) * array.map_or(1, |array| item_cost(array).into())
}
