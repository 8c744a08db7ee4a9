"""Fifty texts in each of five languages, short and long, for the note on languages; our own."""

GERMAN = """
Das Paket ist nicht angekommen.
Die Rechnung enthält einen falschen Betrag und muss berichtigt werden.
Wo bleibt meine Bestellung?
Der Drucker im zweiten Stock druckt nur noch leere Seiten.
Bitte ändern Sie die Anschrift.
Unser Umzug findet im nächsten Monat statt.
Ich habe mein Kennwort vergessen.
Warum wurde mir der Betrag zweimal abgebucht?
Die Lieferung war vollständig, aber ein Karton ist beschädigt.
Können Sie mir eine neue Rechnung schicken?
Der Akku hält nicht länger als eine Stunde.
Es regnet seit gestern ohne Pause.
Die Katze schläft auf dem Sofa.
Wir suchen eine Wohnung mit Balkon.
Der Zug nach Hamburg fährt heute nicht.
Das Treffen ist auf Freitag verschoben.
Ein Hund bellt vor der Tür.
Die Preise sind im Mai gefallen.
Kein Anschluss unter dieser Nummer.
Mein Konto ist gesperrt und ich weiß nicht warum.
Die Heizung ist kalt, obwohl sie auf fünf steht.
Er repariert seine Netze am Hafen.
Das Fenster lässt sich nicht öffnen.
Wie lange gilt die Garantie?
Sie hat den Vertrag gekündigt.
Der Kaffee ist kalt und die Milch sauer.
Zwei Kinder spielen im Garten mit einem Ball.
Die Ware kam ohne Lieferschein.
Das Update wird bei mir nicht installiert.
Ich möchte die Bestellung stornieren.
Der Bildschirm flackert, wenn ich das Kabel bewege.
Nach dem Neustart ist die Datei weg.
Die Tür zum Keller klemmt.
Es gibt keine freien Plätze mehr.
Wann kommt der Techniker?
Die Schuhe sind zu klein.
Seit dem Umbau ist es hier sehr laut.
Der Server ist seit heute Morgen nicht erreichbar.
Das Angebot gilt bis zum Ende des Monats.
Ihre Antwort hat mir nicht geholfen.
Der Preis auf der Rechnung ist höher als im Angebot.
Ich bin mit der Beratung sehr zufrieden.
Der Schlüssel liegt unter der Matte.
Für das Frühstück fehlt noch Brot.
Die Waschmaschine schleudert nicht mehr.
Das Foto ist unscharf.
Gibt es den Mantel auch in Blau?
Die Mail ist im Ordner für Werbung gelandet.
Er fährt jeden Tag mit dem Rad zur Arbeit.
Der Termin passt mir nicht.
"""
FRENCH = """
Le colis n'est pas arrivé.
La facture contient un montant faux et il faut la corriger.
Où est ma commande ?
L'imprimante du deuxième étage ne sort que des pages blanches.
Merci de changer notre adresse.
Nous déménageons le mois prochain.
J'ai oublié mon mot de passe.
Pourquoi le montant a-t-il été débité deux fois ?
La livraison est complète, mais un carton est abîmé.
Pouvez-vous m'envoyer une nouvelle facture ?
La batterie ne tient pas plus d'une heure.
Il pleut depuis hier sans arrêt.
Le chat dort sur le canapé.
Nous cherchons un appartement avec balcon.
Le train pour Lyon ne part pas aujourd'hui.
La réunion est reportée à vendredi.
Un chien aboie devant la porte.
Les prix ont baissé en mai.
Mon compte est bloqué et je ne sais pas pourquoi.
Le chauffage est froid.
Il répare ses filets sur le port.
La fenêtre ne s'ouvre pas.
Quelle est la durée de la garantie ?
Elle a résilié son contrat.
Le café est froid et le lait est aigre.
Deux enfants jouent dans le jardin avec un ballon.
La marchandise est arrivée sans bon de livraison.
La mise à jour ne s'installe pas chez moi.
Je voudrais annuler la commande.
L'écran clignote quand je bouge le câble.
Après le redémarrage, le fichier a disparu.
La porte de la cave est coincée.
Il n'y a plus de places libres.
Quand vient le technicien ?
Les chaussures sont trop petites.
Depuis les travaux, il y a beaucoup de bruit ici.
Le serveur ne répond plus depuis ce matin.
L'offre est valable jusqu'à la fin du mois.
Votre réponse ne m'a pas aidé.
Le prix sur la facture est plus haut que dans l'offre.
Je suis très content du conseil.
La clé est sous le tapis.
Il manque du pain pour le petit déjeuner.
La machine à laver n'essore plus.
La photo est floue.
Est-ce que le manteau existe aussi en bleu ?
Le courriel est arrivé dans le dossier des publicités.
Il va tous les jours au travail à vélo.
Ce rendez-vous ne me convient pas.
Le pêcheur vend son poisson au marché.
"""
SPANISH = """
El paquete no ha llegado.
La factura tiene un importe equivocado y hay que corregirla.
¿Dónde está mi pedido?
La impresora del segundo piso solo saca hojas en blanco.
Por favor, cambien nuestra dirección.
Nos mudamos el mes que viene.
He olvidado mi contraseña.
¿Por qué me han cobrado dos veces?
La entrega está completa, pero una caja está rota.
¿Me puede enviar una factura nueva?
La batería no dura más de una hora.
Llueve desde ayer sin parar.
El gato duerme en el sofá.
Buscamos un piso con balcón.
El tren a Sevilla no sale hoy.
La reunión se ha pasado al viernes.
Un perro ladra delante de la puerta.
Los precios bajaron en mayo.
Mi cuenta está bloqueada y no sé por qué.
La calefacción está fría.
Repara sus redes en el puerto.
La ventana no se abre.
¿Cuánto dura la garantía?
Ella ha cancelado su contrato.
El café está frío y la leche está agria.
Dos niños juegan con una pelota en el jardín.
La mercancía llegó sin albarán.
La actualización no se instala en mi equipo.
Quiero anular el pedido.
La pantalla parpadea cuando muevo el cable.
Después de reiniciar, el archivo ya no está.
La puerta del sótano no se cierra.
Ya no hay plazas libres.
¿Cuándo viene el técnico?
Los zapatos son muy pequeños.
Desde las obras hay mucho ruido aquí.
El servidor no responde desde esta mañana.
La oferta vale hasta el final del mes.
Su respuesta no me ha ayudado.
El precio de la factura es más alto que el de la oferta.
Estoy muy contento con el consejo.
La llave está debajo de la alfombra.
Falta pan para el desayuno.
La lavadora ya no centrifuga.
La foto está borrosa.
¿Existe el abrigo también en azul?
El correo está en la carpeta de publicidad.
Va todos los días al trabajo en bicicleta.
Esa hora no me va bien.
El pescador vende su pescado en el mercado.
"""
TURKISH = """
Paket henüz gelmedi ve kimse nerede olduğunu bilmiyor.
Faturada yanlış bir tutar var.
Siparişim nerede kaldı?
İkinci kattaki yazıcı dünden beri boş sayfa basıyor.
Lütfen adresimizi değiştirin.
Gelecek ay başka bir eve taşınıyoruz.
Şifremi unuttum, ne yapmam gerekiyor?
Neden benden iki kez ödeme alındı?
Teslimat tam ama bir kutu ezilmiş.
Bana yeni bir fatura gönderebilir misiniz?
Pil bir saatten çok dayanmıyor.
Dünden beri hiç durmadan yağmur yağıyor.
Kedi kanepede uyuyor.
Balkonu olan bir daire arıyoruz.
İzmir treni bugün kalkmıyor.
Toplantı cuma gününe ertelendi.
Kapının önünde bir köpek havlıyor.
Fiyatlar mayıs ayında düştü.
Hesabım kapalı ve nedenini bilmiyorum.
Kalorifer soğuk ama ayarı en yüksekte.
Adam limanda ağlarını onarıyor.
Bu pencere açılmıyor.
Garanti ne kadar sürüyor?
O sözleşmesini iptal etti.
Kahve soğuk ve süt ekşi.
İki çocuk bahçede bir topla oynuyor.
Mal irsaliye olmadan geldi.
Güncelleme bende kurulmuyor.
Bu siparişi iptal etmek için ne yapmalıyım?
Kabloyu oynatınca ekran titriyor.
Yeniden başlattıktan sonra dosya yok oldu.
Bodrum kapısı çok zor açılıyor.
Artık boş yer yok.
Teknisyen ne zaman gelecek?
Ayakkabılar bana çok küçük.
Tadilattan sonra burada çok gürültü var.
Sunucu bu sabahtan beri yanıt vermiyor.
Teklif ay sonuna kadar geçerli.
Cevabınız bana hiç yardımcı olmadı.
Faturadaki fiyat tekliftekinden daha yüksek.
Danışmanlıktan çok memnun kaldım.
Anahtar paspasın altında.
Kahvaltı için ekmek yok.
Çamaşır makinesi artık sıkmıyor.
Bu fotoğraf çok bulanık.
Bu montun mavisi de var mı?
Posta reklam klasörüne gitmiş.
Her gün işe bisikletle gidiyor.
Bu saat bana göre değil.
Balıkçı balığını pazarda satıyor.
"""
ENGLISH = """
The parcel has not arrived.
Where is my order?
Bosch Professional GSR 18V-55 cordless drill
Cannot log in to Zalando
Häagen-Dazs vanilla ice cream
Miele Waschmaschine WWD120 does not spin
IKEA Kallax shelf in white
Los Pollos Hermanos restaurant
Café de Paris
Musée du Louvre tickets
Volkswagen Golf GTI
The Deutsche Bahn train from Köln to Frankfurt am Main is late
El Niño and La Niña change the weather
Dr. Oetker Ristorante pizza mozzarella
Nestlé Nescafé Dolce Gusto machine is broken
Louis Vuitton handbag
Real Madrid won the Copa del Rey
São Paulo to Rio de Janeiro by bus
Crème brûlée for two
Garmin fenix 7X Sapphire Solar
printer jam
refund
A cat sleeps on the sofa.
The price on the invoice is higher than in the offer.
Can you send me a new invoice?
Lufthansa Miles and More account locked
Schwarzkopf Gliss Kur shampoo
Die Hard is on tonight
In vino veritas, said the barman
Logitech MX Keys Mini keyboard
Hermès Terre d'Hermès eau de toilette
She plays the cello in Los Angeles
De Longhi Magnifica S espresso machine
Le Creuset casserole, 28 cm
Ludwig van Beethoven wrote nine symphonies
Vincent van Gogh
Leonardo da Vinci
Charles de Gaulle airport
Xiaomi Redmi Note 12 Pro
Dolce e Gabbana sunglasses
Kärcher K5 pressure washer leaks
Adidas Samba OG in size 42
No refunds on sale items
The Die Zeit newspaper is printed in Hamburg
Two dogs play by the lake.
ASUS ROG Strix GeForce RTX 4090
Kubernetes pod stuck in CrashLoopBackOff
Hyundai Ioniq 5
Ferrero Rocher and Ritter Sport
Stocks fell in May.
"""
TEXTS = {
    "German": GERMAN,
    "French": FRENCH,
    "Spanish": SPANISH,
    "Turkish": TURKISH,
    "English": ENGLISH,
}


def texts(language: str) -> list[str]:
    return TEXTS[language].strip().splitlines()
